"""Other actors of the same queue group, by their heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.connection import Connection
from actor.settings import Settings
from schemas.subjects import Subjects

__all__ = ["Peers"]

INTERVALS = 3
"""Heartbeats missed before an actor counts as gone."""
INTERVAL_S_MAX = 3600.0
"""Longest interval between heartbeats that a setting allows."""
PEERS_MAX = 10_000
"""Anybody may publish a heartbeat: what is remembered has an end."""


class _Bus(msgspec.Struct, frozen=True):
    queue_group: str
    taking: bool


class _Beat(msgspec.Struct, frozen=True):
    """What of a heartbeat matters here; an actor of another version may send more."""

    instance: str
    state: str
    interval_s: float
    bus: _Bus


class Peers:
    """Knows who else would take a request. Everything is called on the event loop."""

    def __init__(
        self, settings: Settings, connection: Connection, *, on_leave: Callable[[], None]
    ) -> None:
        """``on_leave`` is told when an actor that took requests says that it does no longer."""
        self._connection = connection
        self._subject = Subjects(settings.subject_prefix).health("*")
        self._own = settings.instance
        self._group = settings.queue_group
        self._decoder = msgspec.json.Decoder(_Beat)
        self._on_leave = on_leave
        self._word = asyncio.Event()
        self._free_until_s: dict[str, float] = {}
        self._subscription: Subscription | None = None

    @property
    def free(self) -> bool:
        """True when another actor takes requests now."""
        now_s = time.monotonic()
        return any(until_s > now_s for until_s in self._free_until_s.values())

    async def heard(self, within_s: float) -> bool:
        """Wait for another actor to say that it takes requests; False when none does."""
        self._word.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._word.wait()
        return self._word.is_set()

    async def subscribe(self) -> None:
        """Listen from now on."""
        self._subscription = await self._connection.subscribe(self._subject, self._on_heartbeat)

    async def end(self) -> None:
        """Listen no more."""
        if self._subscription:
            await self._connection.end(self._subscription)
            self._subscription = None

    def _on_heartbeat(self, message: Msg) -> None:
        try:
            beat = self._decoder.decode(message.data)
        except (msgspec.MsgspecError, RecursionError):
            return
        if message.subject.rpartition(".")[2] != beat.instance:
            return  # whoever may publish one actor's heartbeats speaks for that one alone
        if beat.instance == self._own or beat.bus.queue_group != self._group:
            return
        took = self._free_until_s.pop(beat.instance, None) is not None
        if beat.state == "ready" and beat.bus.taking and self._has_room():
            silence_s = INTERVALS * min(beat.interval_s, INTERVAL_S_MAX)
            self._free_until_s[beat.instance] = time.monotonic() + silence_s
            self._word.set()
        elif took:
            self._on_leave()

    def _has_room(self) -> bool:
        """Forget those who fell silent before refusing a new one."""
        if len(self._free_until_s) >= PEERS_MAX:
            now_s = time.monotonic()
            self._free_until_s = {
                name: until_s for name, until_s in self._free_until_s.items() if until_s > now_s
            }
        return len(self._free_until_s) < PEERS_MAX
