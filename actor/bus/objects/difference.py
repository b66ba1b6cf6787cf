"""A difference between what is there and what is wanted, and how subjects and times are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from actor.rules.subject import overlap, pattern_of_filter

__all__ = ["APPLY", "Difference", "covers", "meets_any", "seconds"]

APPLY = "semif-actor stream apply"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it must be."""

    object: str
    setting: str
    """Field of its configuration; empty for the object as a whole."""
    found: str
    wanted: str
    by_hand: str = ""
    """What a person must do; empty when ``stream apply`` can do it."""
    changes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What ``stream apply`` sets in the object's configuration."""

    def __str__(self) -> str:
        todo = self.by_hand or APPLY
        what = f"{self.object}: {self.setting}" if self.setting else self.object
        return f"{what} is {self.found}, wanted {self.wanted} ({todo})"


def covers(outer: str, inner: str) -> bool:
    """True when ``outer`` takes every subject that ``inner`` does; both may have wildcards."""
    mine, theirs = outer.split("."), inner.split(".")
    for place, token in enumerate(mine):
        if token == ">":  # noqa: S105 - of a subject
            return len(theirs) > place
        if place >= len(theirs) or theirs[place] == ">" or token not in {"*", theirs[place]}:
            return False
    return len(mine) == len(theirs)


def meets_any(subject: str, others: Iterable[str]) -> bool:
    """True when a subject can fit ``subject`` and one of ``others``; all may have wildcards."""
    return any(overlap(pattern_of_filter(subject), other) for other in others)


def seconds(nanoseconds: int) -> str:
    """Give a time of the server's for people."""
    return f"{nanoseconds / 1e9:g} s"
