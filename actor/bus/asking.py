"""Questions of the actor's own to the server, and their answers, over one inbox."""

from __future__ import annotations

import asyncio

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.connection import Connection

__all__ = ["Asker", "Unanswered", "is_nobody"]

REQUEST_WITHIN_S = 5.0
"""Seconds for a stream to store a message and say so."""


class Unanswered(Exception):
    """There is no answer; the text says why. The question may have arrived all the same."""


def is_nobody(message: Msg) -> bool:
    """True for the server's word that nobody listens on the subject."""
    return not message.data and (message.headers or {}).get("Status") == "503"


class Asker:
    """Asks many things at once. nats-py's own ``request`` leaves traces of those that fail."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._prefix = connection.new_inbox()
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._number = 0
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Listen for answers; whether the server allows it is known after ``confirm``."""
        self._subscription = await self._connection.subscribe(f"{self._prefix}.*", self._on_answer)

    async def close(self) -> None:
        """Listen no more; whoever waits for an answer runs into the end of its time."""
        if self._subscription:
            await self._connection.end(self._subscription)
            self._subscription = None

    async def ask(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        *,
        within_s: float,
    ) -> Msg:
        """Give the first answer; raises :class:`Unanswered`."""
        self._number += 1
        inbox = f"{self._prefix}.{self._number}"
        answer = self._waiting[inbox] = self._loop.create_future()
        # No asyncio.timeout: it costs more than the rest, twice for each job.
        timer = self._loop.call_later(within_s, _give_up, answer)
        try:
            if not await self._connection.publish(subject, payload, headers, reply=inbox):
                raise Unanswered("it could not be sent")
            message = await answer
        except TimeoutError:
            raise Unanswered(f"no answer within {within_s:g} s") from None
        finally:
            timer.cancel()
            del self._waiting[inbox]
        if is_nobody(message):
            raise Unanswered("nobody listens")
        return message

    async def request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None
    ) -> bytes | None:
        """Give the body of the first answer, or None: what publishing to a stream needs."""
        try:
            message = await self.ask(subject, payload, headers, within_s=REQUEST_WITHIN_S)
        except Unanswered:
            return None
        body: bytes = message.data
        return body

    def _on_answer(self, message: Msg) -> None:
        answer = self._waiting.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)


def _give_up(answer: asyncio.Future[Msg]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())
