"""In and out of the queue group: a full actor is not there while another has room.

The server hands a group's requests out at random, to the full as to the free: with one slow member
of two, seven of twenty requests timed out that the other could have answered. So a full actor
unsubscribes until its queue is half empty. The last one stays: it refuses by ``overloaded``, which
tells callers when to come back, where no actor at all would be ``no responders``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.connection import Connection

__all__ = ["Intake", "Load", "should_take"]

_log = structlog.get_logger()

LOOK_S = 0.5
"""Seconds between two looks at a load that grows while nothing happens: a batch that runs long."""


class Load(msgspec.Struct, frozen=True):
    """How busy the actor is."""

    full: bool
    """A limit of the queue is all but reached."""
    roomy: bool
    """Every limit of the queue is less than half used."""
    wait_s: float
    """Seconds that a request would wait, by the rate that was measured."""
    wait_s_max: float
    """Seconds of waiting from which on a free actor is the better one."""


def should_take(load: Load, *, taking: bool, peer_free: bool) -> bool:
    """Tell whether to be in the queue group: out when full, in again at half, and never nobody."""
    if not peer_free:
        return True
    if taking:
        return not (load.full or load.wait_s > load.wait_s_max)
    return load.roomy and load.wait_s < load.wait_s_max / 2


class Intake:
    """The owner of the request subscriptions. :meth:`run` is one task; all on the event loop."""

    def __init__(
        self,
        connection: Connection,
        callbacks: Mapping[str, Callable[[Msg], Awaitable[None] | None]],
        *,
        group: str,
        load: Callable[[], Load],
        peer_free: Callable[[], bool],
        peer_stays: Callable[[], Awaitable[bool]],
        changed: Callable[[], None],
    ) -> None:
        """``callbacks`` by subject.

        ``peer_stays`` waits a moment for another actor to say that it takes requests; ``changed``
        is told of each step, and before one out: others answer that.
        """
        self._connection = connection
        self._callbacks = callbacks
        self._group = group
        self._load = load
        self._peer_free = peer_free
        self._peer_stays = peer_stays
        self._changed = changed
        self._subscriptions: list[Subscription] = []
        self._news = asyncio.Event()
        self._stepping = asyncio.Lock()
        self._closed = False
        self.taking = False
        """Subscribed to the request subjects."""
        self.steps_out = 0
        """Times the actor left the queue group for others to take over."""

    def look(self) -> None:
        """Think again: the load has changed."""
        self._news.set()

    async def step_in(self) -> None:
        """Take requests; whether the server lets us is known after ``confirm``."""
        async with self._stepping:
            if self._closed or self.taking:
                return
            self.taking = True
            for subject, callback in self._callbacks.items():
                subscription = await self._connection.subscribe(
                    subject, callback, queue=self._group
                )
                self._subscriptions.append(subscription)

    async def step_out(self) -> None:
        """Unsubscribe; what the server had sent before is still answered."""
        async with self._stepping:
            self.taking = False
            subscriptions, self._subscriptions = self._subscriptions, []
            await self._connection.end(*subscriptions)

    async def close(self) -> None:
        """Step out for good."""
        self._closed = True
        await self.step_out()

    async def run(self) -> None:
        """Step out and in as the load asks, until cancelled."""
        if not self._group:
            return  # each actor answers every request for itself: nobody takes over
        while True:
            self._news.clear()
            await self._follow()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()

    async def _follow(self) -> None:
        wanted = self._wants(taking=self.taking)
        if wanted == self.taking or self._closed:
            return
        if wanted:
            await self.step_in()
            _log.info("in the queue group")
        elif await self._another_stays():
            self.steps_out += 1
            await self.step_out()
            _log.info("out of the queue group: full")
        self._changed()

    def _wants(self, *, taking: bool) -> bool:
        return should_take(self._load(), taking=taking, peer_free=self._peer_free())

    async def _another_stays(self) -> bool:
        """Say that we go, and go when another one answers that it stays.

        A flood fills all actors at once, and their last heartbeats still say that they take
        requests: each would go for the sake of the others, and callers find nobody. So would those
        that are left when one was killed, for three of its intervals. Another's answer may have
        been on its way before it heard us, and it may be about to go itself: then its word has
        come with the barrier.
        """
        self.taking = False
        self._changed()
        heard = await self._peer_stays()
        try:
            await self._connection.barrier()
        except nats.errors.Error:
            heard = False
        if self._closed:
            return False
        self.taking = not heard or self._wants(taking=True)
        return not self.taking
