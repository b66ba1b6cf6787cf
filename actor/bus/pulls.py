"""Requests to a consumer for its next messages: how many are still to come, and is it there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.connection import Connection
from actor.bus.delivery import Delivery, delivery_of
from schemas.subjects import JETSTREAM_API

__all__ = ["Pulls"]

EXPIRES_S = 30.0
"""Seconds that a request waits at the server: nobody has to ask again and again."""
HEARTBEAT_S = 5.0
"""Seconds between the server's words that a request still waits there."""
SILENCE_S = 2 * HEARTBEAT_S
"""Without a word for so long, the requests are lost: with a cluster's leader, or on the way."""
NS = 1_000_000_000

HEARTBEAT, NO_MESSAGES, TIMED_OUT, CONFLICT = "100", "404", "408", "409"
GONE = {"503": "the consumer is not there", "400": "the consumer refuses what is asked"}
DELETED = "consumer deleted"
NO_CONNECTION = "there is no connection"
PENDING_HEADER = "Nats-Pending-Messages"
"""Of a request that has ended: how many messages it had still to get."""


class _Next(msgspec.Struct, frozen=True, omit_defaults=True):
    """Body of a request for the next messages."""

    batch: int
    expires: int = 0
    idle_heartbeat: int = 0
    max_bytes: int = 0
    no_wait: bool = False


class Pulls:
    """All the requests of one consumer, over one inbox.

    One number for all of them: what a consumer delivers has its message's own subject, so nobody
    can tell which request has brought it.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        durable: str,
        *,
        bytes_max: int,
        deliver: Callable[[Delivery, str], None],
        changed: Callable[[], None],
    ) -> None:
        """Prepare.

        ``deliver`` gets each delivery and the subject to acknowledge it on; ``changed`` is told
        when :attr:`asked` shrinks without one, and of :attr:`proved` and :attr:`fault`.
        """
        self._connection = connection
        self._subject = f"{JETSTREAM_API}.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._stream = stream
        self._bytes_max = bytes_max
        self._deliver = deliver
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._inbox = connection.new_inbox()
        self._number = 0
        self._living = 0
        """Number of the first request that is not forgotten."""
        self._brought = False
        self._subscription: Subscription | None = None
        self.asked = 0
        """Messages asked for and still to come."""
        self.proved = False
        """True since the consumer has said something."""
        self.fault: str | None = None
        self._heard_s = 0.0

    async def open(self) -> None:
        """Listen; whether the server allows it is known after ``confirm``."""
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._on_message)
        self._connection.on_reconnect.append(self._on_reconnect)

    async def close(self) -> None:
        """Listen no more: the server forgets the requests. What it has sent is still delivered."""
        if self._on_reconnect in self._connection.on_reconnect:
            self._connection.on_reconnect.remove(self._on_reconnect)
        if self._subscription:
            await self._connection.end(self._subscription)
            self._subscription = None

    async def ask(self, count: int) -> None:
        """Ask for ``count`` messages more, as they come."""
        await self._send(
            _Next(
                batch=count,
                expires=int(EXPIRES_S * NS),
                idle_heartbeat=int(HEARTBEAT_S * NS),
                max_bytes=max(self._bytes_max, 2 * self._connection.payload_bytes_max),
            ),
            count,
        )

    async def probe(self) -> None:
        """Ask for one message that is there now: a consumer that is there answers at once."""
        await self._send(_Next(batch=1, no_wait=True), 1)

    def silent_in_s(self) -> float:
        """Give the seconds until the consumer has been silent for too long."""
        return self._heard_s + SILENCE_S - self._loop.time()

    def forget(self, fault: str | None) -> None:
        """Give up on what was asked: nothing of it will come, and nothing is proved."""
        self.fault = fault or self.fault
        self.asked = 0
        self.proved = False
        self._living = self._number + 1
        self._changed()

    async def _send(self, body: _Next, count: int) -> None:
        self._number += 1
        self._brought = False
        self.asked += count
        self._heard_s = self._loop.time()
        reply = f"{self._inbox}.{self._number}"
        if not await self._connection.publish(self._subject, _encode(body), reply=reply):
            self.forget(NO_CONNECTION)

    def _on_reconnect(self) -> None:
        self.forget(NO_CONNECTION)

    def _on_message(self, message: Msg) -> None:
        self._heard_s = self._loop.time()
        delivery = delivery_of(message)
        if delivery is not None and delivery.stream == self._stream:
            self.asked = max(self.asked - 1, 0)
            self._brought = True
            self._prove()
            self._deliver(delivery, message.reply)
            return
        headers = message.headers or {}
        number = message.subject.rpartition(".")[2]
        if number.isdecimal() and int(number) >= self._living:
            self._on_status(headers.get("Status", ""), headers)

    def _on_status(self, status: str, headers: dict[str, str]) -> None:
        text = headers.get("Description", "")
        if status in GONE or text.lower() == DELETED:
            self.forget(GONE.get(status, GONE["503"]))
            return
        if status == HEARTBEAT:
            self._prove()
            return
        pending = headers.get(PENDING_HEADER, "")
        if status in {NO_MESSAGES, TIMED_OUT}:
            self._ended(int(pending) if pending.isdecimal() else 1)
            self._prove()
            return
        # E.g. the bytes asked for are full. That a request brings nothing at all must not be
        # answered by the next one, at once and for ever: a probe has no limit of bytes.
        if status == CONFLICT and pending.isdecimal() and self._brought:
            self._ended(int(pending))
            return
        self.forget(f"the consumer says {status} {text}"[:200])

    def _ended(self, pending: int) -> None:
        self.asked = max(self.asked - pending, 0)
        self._changed()

    def _prove(self) -> None:
        if not self.proved:
            self.proved = True
            self.fault = None
            self._changed()


_encode = msgspec.json.Encoder().encode
