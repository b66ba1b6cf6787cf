"""Requests from the bus to the handler, and each one's single reply back."""

from __future__ import annotations

import asyncio

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.connection import Connection
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
    """The owner of the request subscriptions and of the task of each request."""

    def __init__(
        self, settings: Settings, connection: Connection, handler: Handler, meter: Meter
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._handler = handler
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._tasks_max = UNREAD_FACTOR * settings.queue_jobs_max
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Requests received and not yet answered."""
        return len(self._tasks)

    async def subscribe(self) -> None:
        """Take requests from now on; whether the server lets us is known after ``confirm``."""
        subjects = Subjects(self._settings.subject_prefix)
        group = self._settings.queue_group
        for subject, callback in (
            (subjects.score, self._on_score),
            (subjects.score_shared, self._on_score_shared),
        ):
            subscription = await self._connection.subscribe(subject, callback, queue=group)
            self._subscriptions.append(subscription)

    async def stop_intake(self) -> None:
        """Unsubscribe; what the server had sent before is still answered."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await self._connection.end(subscription)

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

    async def _on_score(self, message: Msg) -> None:
        await self._accept(message, shared=False)

    async def _on_score_shared(self, message: Msg) -> None:
        await self._accept(message, shared=True)

    async def _accept(self, message: Msg, *, shared: bool) -> None:
        """Start the request's task and return: nats-py delivers one message at a time."""
        self._meter.received += 1
        if not message.reply:
            self._meter.unanswerable += 1
            return
        if len(self._tasks) >= self._tasks_max:
            await self._send(message.reply, self._handler.refuse_unread())
            return
        incoming = Incoming(
            shared=shared,
            payload=message.data,
            headers={name.lower(): value for name, value in (message.headers or {}).items()},
            received_s=self._loop.time(),
            reply_bytes_max=self._connection.payload_bytes_max,
            caller=caller_of(message.reply),
        )
        task = self._loop.create_task(self._serve(incoming, message.reply))
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._done)

    async def _serve(self, incoming: Incoming, reply_to: str) -> None:
        await self._send(reply_to, await self._handler.handle(incoming))

    async def _send(self, reply_to: str, reply: Reply) -> None:
        # Never msg.respond: it echoes the caller's headers.
        if not await self._connection.publish(reply_to, reply.payload, reply.headers):
            self._meter.replies_dropped += 1

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a request's task failed: a bug", exc_info=error)
