"""Which rules feed which: a rule whose own output comes back to it never ends.

What a file shows is refused when it is read. What it cannot show (a stream that mirrors, somebody
else's program in between) is stopped by the count in ``Semif-Hops``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from actor.rules.rule import CoreSource, Rule
from actor.rules.subject import overlap, pattern_of_filter

__all__ = ["feeds", "find_loops", "find_rivals"]


def feeds(first: Rule, second: Rule) -> bool:
    """True when something that ``first`` publishes may be an event of ``second``."""
    return any(overlap(sink.subject.pattern, second.source.subject) for sink in first.sinks)


def find_loops(rules: Sequence[Rule]) -> list[tuple[str, ...]]:
    """Give for each rule that may feed itself the shortest way back, named rule by rule.

    A chain is no loop: rules may read what others publish. A loop is told once, at its first rule.
    """
    fed = {rule.name: [other.name for other in rules if feeds(rule, other)] for rule in rules}
    loops: list[tuple[str, ...]] = []
    for rule in rules:
        if not any(rule.name in loop for loop in loops) and (way := _way_back(rule.name, fed)):
            loops.append(way)
    return loops


def _way_back(start: str, fed: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    ways: list[tuple[str, ...]] = [(start,)]
    seen: set[str] = set()
    for way in ways:  # grows while it is read: breadth first
        for name in fed[way[-1]]:
            if name == start:
                return (*way, start)
            if name not in seen:
                seen.add(name)
                ways.append((*way, name))
    return None


def find_rivals(rules: Sequence[Rule]) -> list[tuple[str, str, str]]:
    """Give each two rules that would take events from each other, and what they share.

    One queue group, or one consumer, hands each event to one of its readers.
    """
    return [
        (first.name, second.name, shared)
        for first, second in itertools.combinations(rules, 2)
        if (shared := _shared(first, second))
    ]


def _shared(first: Rule, second: Rule) -> str | None:
    mine, theirs = first.source, second.source
    if isinstance(mine, CoreSource) or isinstance(theirs, CoreSource):
        if not (isinstance(mine, CoreSource) and isinstance(theirs, CoreSource)):
            return None
        same = mine.queue_group == theirs.queue_group
        meet = overlap(pattern_of_filter(mine.subject), theirs.subject)
        return f'queue group "{mine.queue_group}"' if same and meet else None
    same = (mine.stream, mine.durable) == (theirs.stream, theirs.durable)
    return f'durable "{mine.durable}" of stream "{mine.stream}"' if same else None
