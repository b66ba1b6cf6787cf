"""The heartbeat and the ``status`` answer: the same record, pushed and pulled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.connection import Connection
from actor.bus.reply_subjects import is_answerable, reply_prefixes
from actor.settings import Settings
from schemas.codec import codec_for
from schemas.health import Heartbeat
from schemas.subjects import Subjects

__all__ = ["HeartbeatPublisher"]

_log = structlog.get_logger()

Snapshot = Callable[[int], Heartbeat]
"""Gives the heartbeat of this moment, with the sequence number asked for."""


class HeartbeatPublisher:
    """Publishes at once, at every change, and every ``heartbeat_s``."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        snapshot: Snapshot,
        *,
        on_status: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """``on_status`` is told of each ``status`` answered, and how long that took."""
        self._connection = connection
        self._snapshot = snapshot
        self._on_status_answered = on_status
        self._interval_s = settings.heartbeat_s
        self._subjects = Subjects(settings.subject_prefix)
        self._subject = self._subjects.health(settings.instance)
        self._reply_prefixes = reply_prefixes(settings)
        self._encode = codec_for(None).encode
        self._sequence = 0
        self._changed = asyncio.Event()
        self._status: Subscription | None = None

    def changed(self) -> None:
        """Publish soon: something that people wait for has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Publish until cancelled. A failed publish is dropped; the next one tells more."""
        while True:
            self._changed.clear()
            await self.publish()
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def publish(self) -> None:
        """Publish one heartbeat now."""
        await self._connection.publish(self._subject, self.beat())

    async def subscribe_status(self) -> None:
        """Answer ``status``, without a queue group: every actor answers for itself."""
        self._status = await self._connection.subscribe(self._subjects.status, self._on_status)

    async def end_status(self) -> None:
        """Stop answering ``status``."""
        if self._status:
            await self._connection.end(self._status)
            self._status = None

    async def _on_status(self, message: Msg) -> None:
        if is_answerable(message.reply, self._reply_prefixes):
            started_s = time.monotonic()
            await self._connection.publish(message.reply, self.beat())
            self._on_status_answered(time.monotonic() - started_s)

    def beat(self) -> bytes:
        """Give the heartbeat of this moment in JSON, with a number of its own."""
        self._sequence += 1
        return self._encode(self._snapshot(self._sequence))
