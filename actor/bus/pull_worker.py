"""Deliveries of one consumer, each to its end: acknowledged, delivered again, or a dead letter.

What jobs and rules share::

    worker = PullWorker(connection, asker, source, room=..., process=..., dead_letters=...,
                        rest_of=..., changed=heartbeat.changed)
    await worker.open()                       # subscribe; before Connection.confirm
    task = asyncio.create_task(worker.run())  # owned by Serving; raises what is a bug
    await worker.stop()                       # fetch no more; what comes late is given back
    await worker.idle()                       # until everything held has ended
    await worker.abandon()                    # give the rest back; how many there were
    worker.health()                           # for the heartbeat
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec
import structlog

from actor.bus.asking import Asker
from actor.bus.connection import Connection
from actor.bus.dead_letters import DeadLetters
from actor.bus.delivery import Delivery, Retry, Verdict
from actor.bus.pulls import Pulls
from actor.bus.settling import Held, Settling
from actor.settings import Settings
from actor.tasks import end
from schemas.health import SourceHealth

__all__ = ["PullWorker", "Source", "source_of"]

_log = structlog.get_logger()

PROBE_WITHIN_S = 2.0
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.2, 2.0
"""Between two looks for a consumer that is not there."""
NO_ROOM_S = 0.25
"""The queue tells nobody that others have emptied it: four looks a second, and only while it is
full of others' requests.
"""
WORK_S = 5.0
"""What is held says when it has ended; this only bounds what a bug could cost."""
ASK_SHARE = 4
"""More is asked for once this part of what may be held is free: few requests, each for many."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where deliveries come from, and how long each may take."""

    name: str
    """In counters and log lines: ``jobs``, or a rule's name."""
    stream: str
    durable: str
    ack_wait_s: float
    """The consumer's; a third of it passes between two words that a delivery is worked on."""
    deliveries_max: int
    """A delivery beyond it becomes a dead letter without being tried."""
    held_max: int
    """Most deliveries taken and not yet settled."""
    bytes_max: int = 16 * 1024 * 1024
    """Most bytes that one request to the consumer brings; at least two of the largest messages."""


def source_of(settings: Settings, *, name: str, stream: str, durable: str) -> Source:
    """Give a source under the limits of the settings."""
    return Source(
        name=name,
        stream=stream,
        durable=durable,
        ack_wait_s=settings.ack_wait_s,
        deliveries_max=settings.deliveries_max,
        held_max=settings.queue_jobs_max,
    )


class PullWorker:
    """Takes what there is room for. Everything is called on the event loop."""

    def __init__(
        self,
        connection: Connection,
        asker: Asker,
        source: Source,
        *,
        room: Callable[[], int],
        process: Callable[[Delivery], Awaitable[Verdict]],
        dead_letters: DeadLetters,
        rest_of: Callable[[Delivery], str],
        done_already: Callable[[Delivery], Awaitable[bool | None]] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``room`` tells how many more deliveries could begin now, whoever takes them.

        ``process`` stores its results, with the stream's word for each, before it says ``Done``.
        ``rest_of`` gives what follows ``<prefix>.dead.`` for a delivery. ``done_already`` is asked
        before a message is given up: whether a delivery before has done it, None when that cannot
        be known now. ``changed`` is told when the consumer is lost or found again.
        """
        self._source = source
        self._room = room
        self._process = process
        self._changed = changed
        self._settling = Settling(
            connection,
            asker,
            dead_letters,
            rest_of,
            done_already,
            source=source.name,
            ack_wait_s=source.ack_wait_s,
            deliveries_max=source.deliveries_max,
        )
        self._pulls = Pulls(
            connection,
            source.stream,
            source.durable,
            bytes_max=source.bytes_max,
            deliver=self._on_delivery,
            changed=self._on_pulls_changed,
        )
        self._loop = asyncio.get_running_loop()
        self._held: dict[int, Held] = {}
        """What is being worked on, by its sequence in the stream."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0
        """Of what is held: how many wait for room."""
        self._backoff_s = 0.0
        self._stopping = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._quantum = max(source.held_max // ASK_SHARE, 1)
        self._told_fault: str | None = None

    async def open(self) -> None:
        """Subscribe; whether the server allows it is known after ``confirm``."""
        await self._pulls.open()

    async def run(self) -> None:
        """Fetch until :meth:`stop`, then wait until all that is held has ended."""
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._settling.keep(self._held), name="in progress")
            while not self._stopping:
                await (self._fetch() if self._pulls.proved else self._find())
            await self._idle.wait()
            keeping.cancel()

    async def stop(self) -> None:
        """Fetch no more; what comes late is given back at once, for another actor."""
        self._stopping = True
        self._wake.set()
        await self._pulls.close()

    async def idle(self) -> None:
        """Wait until nothing is held."""
        await self._idle.wait()

    async def abandon(self) -> int:
        """Give back what is still held; gives how many deliveries that were."""
        tasks = list(self._tasks)
        await end(*tasks)
        return len(tasks)

    def health(self) -> SourceHealth:
        """Give the counts, and what keeps it from fetching."""
        settling = self._settling
        return SourceHealth(
            fault=self._pulls.fault,
            held=len(self._held),
            deliveries=settling.deliveries,
            outcomes=dict(settling.outcomes),
            retries=settling.retries,
            dead=settling.dead,
            dead_unstored=settling.dead_unstored,
            unconfirmed=settling.unconfirmed,
        )

    async def _fetch(self) -> None:
        """Ask for what there is room for, and wait for news."""
        pulls = self._pulls
        self._wake.clear()
        if (count := self._wanted()) > 0:
            await pulls.ask(count)
        if not pulls.asked:
            # Something held will end and say so; others' requests do not.
            await self._news(WORK_S if self._held else NO_ROOM_S)
        elif pulls.silent_in_s() <= 0:
            pulls.forget("the consumer is silent")
        else:
            await self._news(pulls.silent_in_s())
        if pulls.proved:  # not when what was asked is at once refused: that must not go in a circle
            self._backoff_s = 0.0

    async def _find(self) -> None:
        """Look for the consumer once, after a while when it was not there before."""
        pulls = self._pulls
        self._wake.clear()
        if self._backoff_s:
            await self._news(self._backoff_s * random.uniform(0.5, 1.0))  # noqa: S311 - a spread
        self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_MIN_S), BACKOFF_MAX_S)
        self._wake.clear()
        if self._room() > 0:
            await pulls.probe()
            if pulls.asked:
                await self._news(PROBE_WITHIN_S)
            if pulls.asked and not pulls.proved:
                pulls.forget("the consumer is silent")

    async def _news(self, within_s: float) -> None:
        if not self._stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._wake.wait()

    def _wanted(self) -> int:
        """Give how many messages to ask for now; 0 while that would be a few at a time."""
        asked = self._pulls.asked
        room = self._room() - self._waiting
        free = min(room, self._source.held_max - len(self._held)) - asked
        return free if free >= (self._quantum if asked else 1) else 0

    def _on_pulls_changed(self) -> None:
        self._wake.set()
        if self._pulls.fault != self._told_fault:
            self._told_fault = self._pulls.fault
            log = _log.warning if self._told_fault else _log.info
            log(
                "source lost" if self._told_fault else "source found",
                source=self._source.name,
                fault=self._told_fault,
            )
            self._changed()

    def _on_delivery(self, delivery: Delivery, ack_subject: str) -> None:
        """Start the delivery's task and return: nats-py delivers one message at a time."""
        self._settling.deliveries += 1
        held = self._held.get(delivery.sequence)
        if held is not None:
            # It took too long for the server, or the connection was away, and it still runs here:
            # what acknowledges is the newest delivery.
            held.renew(delivery, ack_subject)
            return
        held = self._held[delivery.sequence] = Held(delivery, ack_subject)
        self._idle.clear()
        work = self._settling.give_back(held) if self._stopping else self._handle(held)
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, held))

    async def _handle(self, held: Held) -> None:
        try:
            await self._turn()
            if self._stopping:
                await self._settling.give_back(held)
                return
            verdict = self._settling.too_late(held) or await self._process(held.delivery)
        except asyncio.CancelledError:
            await self._settling.give_back(held)
            raise
        except Exception as error:  # noqa: BLE001 - a job that raises must not stay unsettled
            _log.error("a delivery failed in a way nobody foresaw: a bug", exc_info=error)
            verdict = Retry("failed", "a bug, see the actor's log")
        if self._stopping and isinstance(verdict, Retry):
            await self._settling.give_back(held)  # no fault of its own: another may have it
        else:
            await self._settling.settle(held, verdict)

    async def _turn(self) -> None:
        """Wait until there is room: other sources, or requests, may have taken what there was.

        To be refused would cost a delivery; to wait costs a word that it is worked on.
        """
        self._waiting += 1
        try:
            while self._room() <= 0 and not self._stopping:  # noqa: ASYNC110 - see NO_ROOM_S
                await asyncio.sleep(NO_ROOM_S * random.uniform(0.5, 1.0))  # noqa: S311 - a spread
        finally:
            self._waiting -= 1

    def _done(self, held: Held, task: asyncio.Task[None]) -> None:
        """Forget the delivery, not in its task: one cancelled before its first step never runs."""
        self._tasks.discard(task)
        self._held.pop(held.delivery.sequence, None)
        if not self._held:
            self._idle.set()
        if not self._pulls.asked or self._wanted():
            self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a delivery's task failed: a bug", exc_info=error)
