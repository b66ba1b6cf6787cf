"""What became of each request, by evidence.

Core NATS delivers at most once: what is on the wire to or from a server that is killed is gone, and
no actor can do anything about it. So a request without a reply is no fault of the actor's only if

- its caller's own connection broke, in a fault of the server it was to, while it waited; or
- the connection of the actor that had read it broke, by the actor's own log, in a fault of a
  server. A request that no actor read may have been on its way to any actor whose connection broke
  in that fault. It may also have been sent a little after the break: the other servers route to one
  that was killed until they notice, and to one that stands still until it goes on and has told
  them who left. By their own traces (``--trace``) such requests end at that server; or
- the actor that had read it was killed, or it was on its way when any actor was.

In each case it must have been sent at most ``HELD_S`` before the fault: older ones had their reply
by then. Everything else without a reply is lost. A second reply, and a request that two engines
began, are wrong whatever broke.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.callers import WRONG, Break, Request
from harness.faults import ACTOR_KILL, KILL, LAME_DUCK, PAUSE, Fault

CALLER_BROKEN = "no reply: the caller's connection broke"
ACTOR_BROKEN = "no reply: the actor's connection broke"
ACTOR_KILLED = "no reply: the actor was killed"
LOST = "LOST"
DOUBLED = "DOUBLED"
BAD = (LOST, DOUBLED, WRONG)

HELD_S = 2.0
"""Longest way of a request when nothing breaks: a full queue takes a third of a second."""
HEAL_S = 0.5
"""Seconds until the other servers know what a fault has changed; 0.014 was seen, by their logs."""
NOTICE_S = 2.0
"""Seconds in which a break that a fault has caused is noticed after its end: a loaded machine."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known besides the requests; all times in seconds since 1970."""

    faults: Sequence[Fault] = ()
    caller_breaks: Mapping[int, Sequence[Break]] = field(default_factory=dict)
    actor_breaks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    read: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The actors that read a request, by its number."""
    begun: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The actors whose engine began it."""


def verdict(request: Request, evidence: Evidence) -> str:
    """Give the class of a request."""
    if len(request.replies) > 1 or len(evidence.begun.get(request.number, ())) > 1:
        return DOUBLED
    if request.replies:
        return request.replies[0]
    for fault in evidence.faults:
        if request.sent_s >= fault.start_s - HELD_S and (
            found := _explanation(request, fault, evidence)
        ):
            return found
    return LOST


def _explanation(request: Request, fault: Fault, evidence: Evidence) -> str | None:
    """Say how ``fault`` can have taken the request, or its reply."""
    read_by = evidence.read.get(request.number)
    if fault.kind == ACTOR_KILL:
        was_there = read_by is None or fault.target in read_by
        return ACTOR_KILLED if was_there and request.sent_s <= fault.end_s else None
    if fault.kind not in {KILL, PAUSE, LAME_DUCK}:
        return None
    for broke in evidence.caller_breaks.get(request.caller, ()):
        same = broke.node == fault.target and _during(broke.at_s, fault)
        if same and request.sent_s <= broke.at_s:
            return CALLER_BROKEN
    if fault.kind == LAME_DUCK:
        return None  # an actor leaves a lame duck without a break: that is its task
    known_s = (fault.end_s if fault.kind == PAUSE else fault.start_s) + HEAL_S
    for actor in evidence.actor_breaks if read_by is None else read_by:
        for at_s in evidence.actor_breaks.get(actor, ()):
            until_s = max(at_s, known_s) if read_by is None else at_s
            if _during(at_s, fault) and request.sent_s <= until_s:
                return ACTOR_BROKEN
    return None


def _during(at_s: float, fault: Fault) -> bool:
    return fault.start_s <= at_s <= fault.end_s + NOTICE_S
