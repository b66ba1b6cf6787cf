"""An instance name belongs to one actor: the second one that asks for it refuses to serve."""

from __future__ import annotations

import asyncio

from nats.aio.msg import Msg

from actor.bus.connection import Connection, Refusal
from actor.settings import Settings
from schemas.subjects import DiscoverySubjects

__all__ = ["prove_unique"]

ANSWER_WITHIN_S = 1.0
"""For our own answer, which passes through the server and back."""
TRIES = 5
"""A connection that breaks takes question and answer with it."""
OTHERS_WITHIN_S = 0.25
"""For another's after our own: it has the same way and asks nobody."""


async def prove_unique(settings: Settings, connection: Connection) -> None:
    """Ask who has our name on the bus; raises :class:`Refusal` when not we alone answer.

    Our own answer also proves that messages reach us and that replies leave: a round trip through
    the subscriptions that serve discovery.
    """
    *_, own = DiscoverySubjects(settings.srv_prefix, settings.instance).of("PING")
    for _ in range(TRIES):
        match await _answers_to(own, connection):
            case 0:
                continue
            case 1:
                return
            case _:
                raise Refusal(f"another actor is called {settings.instance}; set SEMIF_INSTANCE")
    raise Refusal(f"no answer to our own {own}: may we publish and receive it?")


async def _answers_to(subject: str, connection: Connection) -> int:
    """Count the answers to an empty request, up to 2."""
    answers: asyncio.Queue[Msg] = asyncio.Queue(maxsize=2)
    inbox = connection.new_inbox()

    def on_answer(message: Msg) -> None:
        # An empty one is the server's: nobody is subscribed to our name.
        if message.data and not answers.full():
            answers.put_nowait(message)

    subscription = await connection.subscribe(inbox, on_answer)
    try:
        await connection.confirm()
        await connection.publish(subject, b"", reply=inbox)
        for found, within_s in enumerate((ANSWER_WITHIN_S, OTHERS_WITHIN_S)):
            try:
                async with asyncio.timeout(within_s):
                    await answers.get()
            except TimeoutError:
                return found
        return 2
    finally:
        await connection.end(subscription)
