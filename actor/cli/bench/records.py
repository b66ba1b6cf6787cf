"""What a measurement finds, and the little statistics it needs: pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

__all__ = ["BenchFailed", "Figure", "Record", "compared", "observed", "percentile"]

Round = tuple[float, float]
"""One round: our side, the baseline."""


class BenchFailed(Exception):
    """A measurement cannot be made; the text says why."""


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A figure to reach."""

    at_least: float | None = None
    """Smallest value that reaches it."""
    at_most: float | None = None
    """Largest value that reaches it."""

    def reached_by(self, value: float) -> bool:
        """True when ``value`` is within; a NaN is within nothing."""
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the table and of the JSON lines."""

    measurement: str
    """Name that ``--only`` takes."""
    what: str
    """What was measured."""
    unit: str
    """Unit of ``ours`` and ``baseline``."""
    ours: float
    """Median of our side."""
    baseline: float | None = None
    """Median of the baseline; absent where there is none."""
    by: Literal["speedup", "share", "added", "ours"]
    """What ``value`` is: baseline/ours, ours/baseline, ours - baseline, or ``ours`` itself."""
    value: float
    """What the figure is about."""
    figure: Figure | None = None
    """The figure to reach; absent where none is set."""
    reached: bool | None = None
    """Whether ``value`` reaches the figure."""
    invariant: bool = False
    """True for a matter of right and wrong, not of speed: not reached, the command fails."""
    rounds: tuple[Round, ...] = ()
    """Each round's two sides."""
    note: str = ""
    """What one must know to read the line."""


def compared(
    measurement: str,
    what: str,
    unit: str,
    rounds: Sequence[Round],
    *,
    by: Literal["speedup", "share", "added"],
    figure: Figure | None = None,
    note: str = "",
) -> Record:
    """Compare two sides measured in turns.

    ``value`` is the median of what each round gave by itself: the sides of one round ran within
    seconds of each other, so that a machine that gets slower half-way moves both.
    """
    values = [_value(by, ours, baseline) for ours, baseline in rounds]
    value = median(values)
    return Record(
        measurement=measurement,
        what=what,
        unit=unit,
        ours=median(ours for ours, _ in rounds),
        baseline=median(baseline for _, baseline in rounds),
        by=by,
        value=value,
        figure=figure,
        reached=None if figure is None else figure.reached_by(value),
        rounds=tuple(rounds),
        note=note,
    )


def observed(
    measurement: str,
    what: str,
    unit: str,
    ours: float,
    *,
    figure: Figure | None = None,
    note: str = "",
) -> Record:
    """Record a number that has no baseline."""
    return Record(
        measurement=measurement,
        what=what,
        unit=unit,
        ours=ours,
        by="ours",
        value=ours,
        figure=figure,
        reached=None if figure is None else figure.reached_by(ours),
        note=note,
    )


def _value(by: Literal["speedup", "share", "added"], ours: float, baseline: float) -> float:
    match by:
        case "speedup":
            return baseline / ours
        case "share":
            return ours / baseline
        case "added":
            return ours - baseline


def percentile(values: Sequence[float], share: float) -> float:
    """Give the smallest value that at least ``share`` of all do not exceed (nearest rank)."""
    if not values:
        return math.nan
    rank = max(math.ceil(share * len(values)), 1)
    return sorted(values)[rank - 1]
