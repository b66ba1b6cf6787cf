"""The chaos run's judge: a loss is excused by evidence, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from harness.callers import ANSWERED, Break, Request
from harness.faults import ACTOR_KILL, DRAIN, FLOOD, KILL, LAME_DUCK, PAUSE, Fault
from harness.verdict import (
    ACTOR_BROKEN,
    ACTOR_KILLED,
    CALLER_BROKEN,
    DOUBLED,
    LOST,
    Evidence,
    verdict,
)

CALLER_OF_N0 = {0: [Break(10.2, "n0")]}
ACTOR_BREAK = {"a0": [10.2], "a1": []}


def judge(sent_s: float, replies: tuple[str, ...] = (), **evidence: Any) -> str:
    """Judge request 7 of caller 0."""
    return verdict(Request(7, 0, sent_s, list(replies)), Evidence(**evidence))


@pytest.mark.parametrize("kind", [KILL, PAUSE, LAME_DUCK, FLOOD, DRAIN, ACTOR_KILL])
def test_without_a_broken_connection_no_fault_is_a_reason(kind: str) -> None:
    """That something was killed nearby explains nothing by itself."""
    target = "a1" if kind == ACTOR_KILL else "n0"
    read = {7: ["a0"]}

    assert judge(10.0, faults=[Fault(kind, target, 10.1, 11.0)], read=read) == LOST


@pytest.mark.parametrize(
    ("sent_s", "kind", "node", "expected"),
    [
        (10.15, KILL, "n0", CALLER_BROKEN),  # between the kill and the break
        (9.0, KILL, "n0", CALLER_BROKEN),
        (9.0, PAUSE, "n0", CALLER_BROKEN),
        (9.0, LAME_DUCK, "n0", CALLER_BROKEN),
        (10.3, KILL, "n0", LOST),  # sent over the next connection
        (7.0, KILL, "n0", LOST),  # it had its reply long before
        (9.0, KILL, "n1", LOST),  # another server's fault
        (9.0, FLOOD, "n0", LOST),
    ],
)
def test_the_callers_own_connection(sent_s: float, kind: str, node: str, expected: str) -> None:
    """It must have broken by a fault of its own server, with the request under way."""
    faults = [Fault(kind, node, 10.1, 11.0)]

    assert judge(sent_s, faults=faults, caller_breaks=CALLER_OF_N0) == expected


@pytest.mark.parametrize(
    ("sent_s", "kind", "read", "expected"),
    [
        (10.0, KILL, ["a0"], ACTOR_BROKEN),
        (10.0, KILL, ["a1"], LOST),  # whose connection is well
        (10.0, KILL, [], ACTOR_BROKEN),  # on its way to a0, perhaps
        (10.3, KILL, [], ACTOR_BROKEN),  # the other servers have not noticed yet
        (10.7, KILL, [], LOST),  # they know that a0 is gone
        (10.7, PAUSE, [], ACTOR_BROKEN),  # they do not: the server stands still
        (10.7, PAUSE, ["a0"], LOST),  # read over the next connection
        (11.4, PAUSE, [], ACTOR_BROKEN),  # and it has just gone on
        (11.6, PAUSE, [], LOST),
        (10.0, LAME_DUCK, ["a0"], LOST),  # that is left without a break
        (10.0, DRAIN, ["a0"], LOST),
    ],
)
def test_the_actors_connection(sent_s: float, kind: str, read: list[str], expected: str) -> None:
    """It must be that of the actor that read the request, when one did."""
    faults = [Fault(kind, "n0", 10.1, 11.0)]
    seen = {7: read} if read else {}

    assert judge(sent_s, read=seen, faults=faults, actor_breaks=ACTOR_BREAK) == expected


@pytest.mark.parametrize(
    ("sent_s", "read", "expected"),
    [
        (10.0, ["a0"], ACTOR_KILLED),
        (10.0, [], ACTOR_KILLED),
        (10.0, ["a1"], LOST),
        (10.3, [], LOST),
    ],
)
def test_an_actor_that_is_killed(sent_s: float, read: list[str], expected: str) -> None:
    """What it held is gone, and what was on its way to it; nothing later."""
    faults = [Fault(ACTOR_KILL, "a0", 10.1, 10.2)]

    assert judge(sent_s, faults=faults, read={7: read} if read else {}) == expected


def test_a_reply_counts_as_it_is_and_a_second_one_never() -> None:
    """Also when the connection broke in between, and when two engines worked on one request."""
    faults = [Fault(KILL, "n0", 10.1, 11.0)]
    broken: dict[str, Any] = {"faults": faults, "caller_breaks": CALLER_OF_N0}

    assert judge(10.0, (ANSWERED,), **broken) == ANSWERED
    assert judge(10.0, (ANSWERED, "overloaded"), **broken) == DOUBLED
    assert judge(10.0, (ANSWERED,), begun={7: ["a0", "a1"]}, **broken) == DOUBLED
