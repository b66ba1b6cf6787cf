"""Questions of the actor's own to the server, and their answers, over one inbox."""

from __future__ import annotations

import asyncio

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.connection import Connection
from schemas.subjects import MSG_ID_HEADER

__all__ = ["Asker", "Nobody", "Unanswered", "is_nobody"]

REQUEST_WITHIN_S = 5.0
"""Seconds for a stream to store a message and say so."""
SENDS_MAX = 3


class Unanswered(Exception):
    """There is no answer; the text says why. The question may have arrived all the same."""

    def __init__(self, reason: str, *, broke: bool = False) -> None:
        super().__init__(reason)
        self.broke = broke
        """The connection did, with the question or the answer on the way; it is back."""


class Nobody(Unanswered):
    """Nobody listens on the subject."""


def is_nobody(message: Msg) -> bool:
    """True for the server's word that nobody listens on the subject."""
    return not message.data and (message.headers or {}).get("Status") == "503"


class Asker:
    """Asks many things at once. nats-py's own ``request`` leaves traces of those that fail.

    What is asked while the connection is broken is sent when it is back, if that is in time.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._prefix = connection.new_inbox()
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._number = 0
        self._reconnected = asyncio.Event()
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Listen for answers; whether the server allows it is known after ``confirm``."""
        self._connection.on_reconnect.append(self._on_reconnect)
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
        generation: int | None = None,
    ) -> Msg:
        """Give the first answer; raises :class:`Unanswered`.

        With a ``generation`` it is asked by that connection or not at all.
        """
        self._number += 1
        inbox = f"{self._prefix}.{self._number}"
        answer = self._waiting[inbox] = self._loop.create_future()
        # No asyncio.timeout: it costs more than the rest, twice for each job.
        timer = self._loop.call_later(within_s, _give_up, answer)
        try:
            while not await self._connection.publish(
                subject, payload, headers, reply=inbox, generation=generation
            ):
                del self._waiting[inbox]  # unsent: not lost with the connection that was
                await self._back(within_s)
                self._waiting[inbox] = answer
            message = await answer
        except TimeoutError:
            raise Unanswered(f"no answer within {within_s:g} s") from None
        except ConnectionError:
            raise Unanswered("the connection broke", broke=True) from None
        finally:
            timer.cancel()
            self._waiting.pop(inbox, None)
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # seen: asyncio writes a line of each that nobody has looked at
        if is_nobody(message):
            raise Nobody("nobody listens")
        return message

    async def request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None
    ) -> bytes | None:
        """Give the body of the first answer, or None: what publishing to a stream needs.

        A message with an id is sent again when the connection broke meanwhile: its stream takes
        it once, and nothing has to be decided a second time.
        """
        named = headers is not None and MSG_ID_HEADER in headers
        for _ in range(SENDS_MAX):
            try:
                message = await self.ask(subject, payload, headers, within_s=REQUEST_WITHIN_S)
            except Unanswered as error:
                if error.broke and named:
                    continue
                return None
            body: bytes = message.data
            return body
        return None

    async def _back(self, within_s: float) -> None:
        """Wait for the connection, which is broken; raises :class:`Unanswered`."""
        if self._connection.connected:
            raise Unanswered("it could not be sent")
        self._reconnected.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._reconnected.wait()
        except TimeoutError:
            raise Unanswered(f"no connection within {within_s:g} s") from None

    def _on_reconnect(self) -> None:
        """Give up on what was asked over the lost connection: no answer comes for it."""
        self._reconnected.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError())

    def _on_answer(self, message: Msg) -> None:
        answer = self._waiting.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)


def _give_up(answer: asyncio.Future[Msg]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())
