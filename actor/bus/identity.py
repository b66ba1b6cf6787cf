"""An instance name belongs to one actor: the second one that asks for it refuses to serve."""

from __future__ import annotations

import asyncio

from nats.aio.msg import Msg

from actor.bus.connection import Connection, Refusal
from actor.settings import Settings
from schemas.subjects import DiscoverySubjects

__all__ = ["prove_unique"]

ANSWER_WITHIN_S = 5.0
"""For our own answer, which passes through the server and back."""
OTHERS_WITHIN_S = 0.25
"""For another's after our own: it has the same way and asks nobody."""


async def prove_unique(settings: Settings, connection: Connection) -> None:
    """Ask who has our name on the bus; raises :class:`Refusal` when not we alone answer.

    Our own answer also proves that messages reach us and that replies leave: a round trip through
    the subscriptions that serve discovery.
    """
    answers: asyncio.Queue[Msg] = asyncio.Queue(maxsize=2)
    inbox = connection.new_inbox()
    *_, own = DiscoverySubjects(settings.srv_prefix, settings.instance).of("PING")

    def on_answer(message: Msg) -> None:
        # An empty one is the server's: nobody is subscribed to our name.
        if message.data and not answers.full():
            answers.put_nowait(message)

    subscription = await connection.subscribe(inbox, on_answer)
    try:
        await connection.barrier()
        await connection.publish(own, b"", reply=inbox)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await answers.get()
        except TimeoutError:
            raise Refusal(f"no answer to our own {own}: may we publish and receive it?") from None
        try:
            async with asyncio.timeout(OTHERS_WITHIN_S):
                await answers.get()
        except TimeoutError:
            return
        raise Refusal(f"another actor is called {settings.instance}; set SEMIF_INSTANCE")
    finally:
        await connection.end(subscription)
