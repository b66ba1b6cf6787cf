"""Where the tokens of a batch lie: which are computed, which are known, who follows whom. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from actor.engine.base import Prompt

__all__ = ["Group", "Plan", "group_prompts", "plans_of"]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows over one state: equal leading tokens, compared whole."""

    key: bytes
    """The leading tokens, four bytes each."""
    state: tuple[int, ...]
    """The leading tokens less the constant head; empty when the rows share nothing more."""
    rows: tuple[int, ...]
    """Positions in the batch."""
    tails: tuple[tuple[int, ...], ...]
    """What follows in each row; never empty."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward pass."""

    groups: tuple[Group, ...]
    tokens: int
    """Tokens computed, each of them once."""


def group_prompts(
    prompts: Sequence[Prompt], *, head: tuple[int, ...], state_tokens_min: int
) -> list[Group]:
    """Give the rows by state, in order of first appearance.

    Every prompt begins with ``head``. A state that only one row is about and that adds fewer than
    ``state_tokens_min`` tokens is not worth a part of its own: it is left in the row's tail.
    """
    together: dict[bytes, list[int]] = {}
    for row, prompt in enumerate(prompts):
        together.setdefault(key_of(prompt.ids[: prompt.state_tokens]), []).append(row)
    groups = []
    for rows in together.values():
        first = prompts[rows[0]]
        cut = max(first.state_tokens, len(head))
        if cut == len(head) or (len(rows) == 1 and cut - len(head) < state_tokens_min):
            cut = len(head)
        groups.append(
            Group(
                key=key_of(first.ids[:cut]),
                state=first.ids[len(head) : cut],
                rows=tuple(rows),
                tails=tuple(prompts[row].ids[cut:] for row in rows),
            )
        )
    return groups


def key_of(ids: tuple[int, ...]) -> bytes:
    """Give the ids as bytes: compact, and compared whole."""
    return array("I", ids).tobytes()


def plans_of(
    groups: Sequence[Group],
    *,
    known: Callable[[bytes], bool],
    tokens_max: int,
    rows_max: int,
) -> Iterator[Plan]:
    """Cut the groups into forward passes within the limits, in order.

    A group may be cut between two rows; its state is computed in the first pass and, where
    ``known`` says so by then, not in the next. A row longer than ``tokens_max`` goes alone.
    """
    taken: list[Group] = []
    tokens = rows = 0
    for group in groups:
        left = group
        while left.rows:
            state = 0 if known(left.key) else len(left.state)
            count, cost = _fitting(left, state, tokens_max - tokens, rows_max - rows)
            if count == 0 and taken:
                yield Plan(tuple(taken), tokens)
                taken, tokens, rows = [], 0, 0
                continue
            count, cost = (count, cost) if count else (1, state + len(left.tails[0]))
            taken.append(_part(left, 0, count))
            left = _part(left, count, len(left.rows))
            tokens += cost
            rows += count
    if taken:
        yield Plan(tuple(taken), tokens)


def _fitting(group: Group, state: int, tokens_max: int, rows_max: int) -> tuple[int, int]:
    """Give how many leading rows fit, and the tokens they cost with the state."""
    count, cost = 0, state
    for tail in group.tails[: max(rows_max, 0)]:
        if cost + len(tail) > tokens_max:
            break
        cost += len(tail)
        count += 1
    return count, cost


def _part(group: Group, start: int, stop: int) -> Group:
    return Group(group.key, group.state, group.rows[start:stop], group.tails[start:stop])
