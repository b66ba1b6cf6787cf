"""Which stored events a replay is about: both ends, as a person gives them, and as sequences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actor.bus.client import BusClient
from actor.bus.objects.api import asking_as_client
from actor.bus.stored_events import bounds_of, first_at_or_after, nanoseconds
from actor.cli.replay_state import BadState, Place, read_place
from actor.rules.rule import Rule, StreamSource

__all__ = ["Stretch", "begin"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Which events: ``start`` and ``end`` are sequences, or nanoseconds since 1970."""

    rule: Rule
    source: StreamSource
    start: int
    start_is_time: bool
    end: int | None
    end_is_time: bool

    @classmethod
    def of(cls, rule: Rule, source: StreamSource, start: str, end: str | None) -> Stretch:
        """Read both ends; raises ``ValueError``."""
        first, first_is_time = _read_end("--from", start)
        last, last_is_time = (None, False) if end is None else _read_end("--to", end)
        return cls(rule, source, first, first_is_time, last, last_is_time)


def _read_end(option: str, text: str) -> tuple[int, bool]:
    if text.isascii() and text.isdecimal() and len(text) < len(str(2**64)):
        return int(text), False
    try:
        return nanoseconds(text), True
    except ValueError:
        raise ValueError(
            f"{option} is a sequence number, or a time such as 2026-11-30T09:00:00Z"
        ) from None


async def begin(client: BusClient, stretch: Stretch, state: Path | None) -> Place:
    """Find both ends; where a state file is, its own stand, so that the stretch does not grow."""
    source = stretch.source
    if state is not None and (place := read_place(state)) is not None:
        if (place.rule, place.stream) != (stretch.rule.name, source.stream):
            raise BadState(f"{state} belongs to rule {place.rule} and stream {place.stream}")
        if (await bounds_of(asking_as_client(client), source.stream)).last + 1 < place.next:
            raise BadState(
                f"{state} is of an older stream: this one ends before sequence {place.next}"
            )
        return place
    ask = asking_as_client(client)
    bounds = await bounds_of(ask, source.stream)
    start = stretch.start
    if stretch.start_is_time:
        start = await first_at_or_after(ask, source.stream, stretch.start)
    last = bounds.last if stretch.end is None else stretch.end
    if stretch.end_is_time:
        last = await first_at_or_after(ask, source.stream, last + 1) - 1
    start, last = max(start, bounds.first), min(last, bounds.last)
    return Place(stretch.rule.name, source.stream, start, start, last)
