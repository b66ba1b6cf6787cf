"""Events of core subjects, each to its end: decided, passed over, or a dead letter.

A core subject delivers once: whatever stands in an event's way, there is no second delivery. So a
burst waits here for its turn, within limits, and what is over them becomes a dead letter at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.connection import Connection
from actor.bus.dead_letters import DeadLetters
from actor.bus.delivery import Delivery, Done, Hopeless, Retry, Verdict, core_delivery
from actor.rules.outcomes import RETRY
from actor.rules.rule import CoreSource
from actor.settings import Settings
from schemas.health import SourceHealth

__all__ = ["CoreEvents"]

_log = structlog.get_logger()

AT_ONCE_SHARE = 2
"""Events ask for one part in this of the queue; the rest is for requests."""
HELD_FACTOR = 8
"""Events held, waiting ones included, as a multiple of the queue's limit."""
NO_ROOM = "too many events are held already"
DRAINING = "the actor is stopping"
A_BUG = "the actor failed"

Process = Callable[[Delivery], Awaitable[Verdict]]


class CoreEvents:
    """The owner of the task of each event. Everything is called on the event loop."""

    def __init__(
        self, settings: Settings, connection: Connection, dead_letters: DeadLetters
    ) -> None:
        self._connection = connection
        self._dead_letters = dead_letters
        self._loop = asyncio.get_running_loop()
        self._held_max = HELD_FACTOR * settings.queue_jobs_max
        self._bytes_max = settings.queue_bytes_max
        self._turns = asyncio.Semaphore(max(settings.queue_jobs_max // AT_ONCE_SHARE, 1))
        self._working: set[asyncio.Task[Verdict]] = set()
        self._burying: set[asyncio.Task[None]] = set()
        self._held = 0
        self._bytes = 0
        self._subscriptions: list[Subscription] = []
        self._rules: list[_Rule] = []
        self._idle = asyncio.Event()
        self._idle.set()

    async def open(self, rule: str, source: CoreSource, process: Process) -> None:
        """Subscribe; whether the server allows it is known after ``confirm``."""
        counted = _Rule(rule, process)
        self._rules.append(counted)
        subscription = await self._connection.subscribe(
            source.subject, partial(self._take, counted), queue=source.queue_group
        )
        self._subscriptions.append(subscription)

    async def stop(self) -> None:
        """Take no more; what the server had sent before is still worked on."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await self._connection.end(*subscriptions)

    async def idle(self) -> None:
        """Wait until every event has its outcome, and its dead letter if that is it."""
        await self._idle.wait()

    async def abandon(self) -> int:
        """Make dead letters of all that is left; give how many there were."""
        tasks = list(self._working)
        for task in tasks:
            task.cancel()
        await self._idle.wait()
        return len(tasks)

    def health(self) -> Mapping[str, SourceHealth]:
        """Give the counts of each rule."""
        return {rule.name: rule.health() for rule in self._rules}

    def _take(self, rule: _Rule, message: Msg) -> None:
        """Start the event's task and return: nats-py delivers one message at a time."""
        rule.deliveries += 1
        delivery = core_delivery(message)
        size = len(delivery.payload)
        if self._held >= self._held_max or (self._held and self._bytes + size > self._bytes_max):
            self._settle(rule, delivery, rule.retry(NO_ROOM))
            return
        self._held += 1
        self._bytes += size
        rule.held += 1
        self._idle.clear()
        task = self._loop.create_task(self._work(rule, delivery))
        self._working.add(task)
        task.add_done_callback(partial(self._worked, rule, delivery))

    async def _work(self, rule: _Rule, delivery: Delivery) -> Verdict:
        async with self._turns:
            return await rule.process(delivery)

    def _worked(self, rule: _Rule, delivery: Delivery, task: asyncio.Task[Verdict]) -> None:
        """Settle the event, not in its task: one cancelled before its first step never runs."""
        self._working.discard(task)
        self._held -= 1
        self._bytes -= len(delivery.payload)
        rule.held -= 1
        if task.cancelled():
            self._settle(rule, delivery, rule.retry(DRAINING))
        elif (error := task.exception()) is not None:
            _log.error("an event failed: a bug", rule=rule.name, exc_info=error)
            self._settle(rule, delivery, rule.retry(A_BUG))
        else:
            self._settle(rule, delivery, task.result())

    def _settle(self, rule: _Rule, delivery: Delivery, verdict: Verdict) -> None:
        rule.outcomes[verdict.code] += 1
        if not isinstance(verdict, Done):
            if len(self._burying) < self._held_max:
                self._idle.clear()
                burying = self._loop.create_task(self._bury(rule, delivery, verdict))
                self._burying.add(burying)
                burying.add_done_callback(self._buried)
                return
            rule.lost += 1
            _log.error("an event is lost: too many dead letters wait", rule=rule.name)
        self._look_whether_idle()

    async def _bury(self, rule: _Rule, delivery: Delivery, verdict: Retry | Hopeless) -> None:
        refused = await self._dead_letters.publish(
            delivery, rest=f"rules.{rule.name}", code=verdict.code, reason=verdict.reason
        )
        if refused is None:
            rule.dead += 1
        else:
            rule.lost += 1

    def _buried(self, task: asyncio.Task[None]) -> None:
        self._burying.discard(task)
        self._look_whether_idle()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a dead letter failed: a bug", exc_info=error)

    def _look_whether_idle(self) -> None:
        if not self._working and not self._burying:
            self._idle.set()


class _Rule:
    """One rule's way of working, and its counts."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.held = 0
        self.deliveries = 0
        self.outcomes: Counter[str] = Counter()
        self.dead = 0
        self.lost = 0

    def retry(self, why: str) -> Retry:
        """Give the end of an event that would be delivered again, were it of a stream."""
        return Retry(RETRY.code, f'rule "{self.name}": {why}')

    def health(self) -> SourceHealth:
        """Give the counts as the heartbeat has them."""
        return SourceHealth(
            fault=None,
            held=self.held,
            deliveries=self.deliveries,
            outcomes=dict(self.outcomes),
            retries=0,
            dead=self.dead,
            dead_unstored=self.lost,
            unconfirmed=0,
        )
