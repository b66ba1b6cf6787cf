"""Requests from the bus to the handler, and each one's single reply back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from nats.aio.msg import Msg

from actor.bus.connection import Connection
from actor.bus.reply_subjects import is_answerable, reply_prefixes
from actor.handler import Handler
from actor.settings import Settings
from actor.telemetry.meter import Meter
from actor.wire import Incoming, Reply
from schemas.subjects import Subjects

__all__ = ["RequestReply", "caller_of"]

_log = structlog.get_logger()

UNREAD_FACTOR = 2
"""Messages being handled, as a multiple of the queue's limit: room to read a message and refuse it
with its own content type. Over this it is refused unread.
"""


def caller_of(reply_to: str) -> str:
    """Give who asks: the reply subject less its last token.

    NATS clients put all their replies under one inbox, made when they connect, and number the
    requests in the last token. A client that makes an inbox for each request shares its turns with
    others that do; a reply subject of one token is a caller by itself.
    """
    return reply_to.rpartition(".")[0] or reply_to


class RequestReply:
    """The owner of the task of each request."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        handler: Handler,
        meter: Meter,
        *,
        crowd_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``crowd_changed`` is told when the queue is nearly full, and when half of it is left."""
        self._connection = connection
        self._handler = handler
        self._meter = meter
        self._crowd_changed = crowd_changed
        self._reply_prefixes = reply_prefixes(settings)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        limit = settings.queue_jobs_max
        self._tasks_max = UNREAD_FACTOR * limit
        self._many, self._half = limit - limit // 8, limit // 2
        self._idle = asyncio.Event()
        self._idle.set()
        subjects = Subjects(settings.subject_prefix)
        self.callbacks = {
            subjects.score: self._on_score,
            subjects.score_shared: self._on_score_shared,
        }
        """What takes the requests, by subject."""

    @property
    def in_flight(self) -> int:
        """Requests received and not yet answered."""
        return len(self._tasks)

    async def idle(self) -> None:
        """Wait until every request is answered."""
        await self._idle.wait()

    async def abandon(self) -> int:
        """Answer every request that is left with ``draining``; give how many there were."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    def _on_score(self, message: Msg) -> Awaitable[None] | None:
        return self._accept(message, shared=False)

    def _on_score_shared(self, message: Msg) -> Awaitable[None] | None:
        return self._accept(message, shared=True)

    def _accept(self, message: Msg, *, shared: bool) -> Awaitable[None] | None:
        """Start the request's task and return: nats-py delivers one message at a time."""
        self._meter.received += 1
        if not is_answerable(message.reply, self._reply_prefixes):
            self._meter.unanswerable += 1
            return None
        headers = message.headers
        incoming = Incoming(
            shared=shared,
            payload=message.data,
            headers={name.lower(): value for name, value in headers.items()} if headers else {},
            received_s=time.monotonic(),
            reply_bytes_max=self._connection.payload_bytes_max,
            caller=caller_of(message.reply),
        )
        # Of the connection the request came by: after another one has taken its place, the reply
        # subject may be another request's.
        generation = self._connection.generation
        if len(self._tasks) >= self._tasks_max:
            return self._send(message.reply, self._handler.refuse_unread(incoming), generation)
        task = self._loop.create_task(self._serve(incoming, message.reply, generation))
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._done)
        if len(self._tasks) >= self._many:
            self._crowd_changed()
        return None

    async def _serve(self, incoming: Incoming, reply_to: str, generation: int) -> None:
        await self._send(reply_to, await self._handler.handle(incoming), generation)

    async def _send(self, reply_to: str, reply: Reply, generation: int) -> None:
        # Never msg.respond: it echoes the caller's headers.
        if not await self._connection.publish(
            reply_to, reply.payload, reply.headers, generation=generation
        ):
            self._meter.replies_dropped += 1

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()
        if len(self._tasks) == self._half:
            self._crowd_changed()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a request's task failed: a bug", exc_info=error)
