"""What can become of an event: one table, whose codes name counters, dead letters and log lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "BAD_CLOUDEVENT",
    "BAD_HEADERS",
    "BAD_STATE",
    "BAD_SUBJECT",
    "BINARY",
    "EMPTY",
    "GAVE_UP",
    "LOOP",
    "MISSING",
    "MISSING_SKIPPED",
    "NOT_JSON",
    "NO_SINK",
    "OTHERWISE",
    "OUTCOMES",
    "OVERSIZE",
    "PUBLISHED",
    "REFUSED",
    "RETRY",
    "TOO_DEEP",
    "TOO_LARGE",
    "UNPUBLISHED",
    "Action",
    "Outcome",
    "StopEvent",
    "Stopped",
]

Action = Literal["publish", "skip", "dead", "retry"]
"""What is done with the event. A core subject delivers once: there, ``retry`` is ``dead``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table; the code alone says what is done."""

    code: str
    """Stable name: the counter's label, the dead letter's header, the log line's field."""
    action: Action
    what: str
    """What happened, for people."""


PUBLISHED = Outcome("published", "publish", "Decided and published; every question was sure.")
OTHERWISE = Outcome("otherwise", "publish", "Decided and published; a question was not sure.")
NO_SINK = Outcome("no_sink", "skip", "Decided, but no sink of the rule takes such a decision.")
MISSING_SKIPPED = Outcome(
    "missing_skipped", "skip", 'A pointer finds nothing, and on_missing is "skip".'
)
EMPTY = Outcome("empty", "dead", "The event has no content.")
TOO_LARGE = Outcome("too_large", "dead", "The event has more bytes than the actor reads.")
TOO_DEEP = Outcome("too_deep", "dead", "The event or the state is nested too deep.")
BINARY = Outcome("binary", "dead", "The event is not UTF-8.")
NOT_JSON = Outcome("not_json", "dead", "The event is not JSON, and the rule reads JSON.")
BAD_HEADERS = Outcome("bad_headers", "dead", "The event's headers cannot be read.")
BAD_CLOUDEVENT = Outcome("bad_cloudevent", "dead", "The event is a CloudEvent with a fault.")
MISSING = Outcome("missing", "dead", "A pointer finds nothing.")
BAD_STATE = Outcome("bad_state", "dead", "What the rule picks cannot be a state.")
BAD_SUBJECT = Outcome("bad_subject", "dead", "A sink's subject cannot be made for the event.")
LOOP = Outcome("loop", "dead", "The event has been through too many rules.")
REFUSED = Outcome("refused", "dead", "The actor refused the question for good.")
OVERSIZE = Outcome("oversize", "dead", "What would be published is larger than the server takes.")
RETRY = Outcome("retry", "retry", "The actor refused the question for now.")
UNPUBLISHED = Outcome("unpublished", "retry", "A sink did not take the decision.")
GAVE_UP = Outcome("gave_up", "dead", "The last delivery ended without a decision published.")

OUTCOMES: tuple[Outcome, ...] = (
    PUBLISHED,
    OTHERWISE,
    NO_SINK,
    MISSING_SKIPPED,
    EMPTY,
    TOO_LARGE,
    TOO_DEEP,
    BINARY,
    NOT_JSON,
    BAD_HEADERS,
    BAD_CLOUDEVENT,
    MISSING,
    BAD_STATE,
    BAD_SUBJECT,
    LOOP,
    REFUSED,
    OVERSIZE,
    RETRY,
    UNPUBLISHED,
    GAVE_UP,
)
"""Every row. ``bad_headers``, ``unpublished`` and ``gave_up`` are the bus's to give."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """An event that is not published, and why."""

    outcome: Outcome
    reason: str
    """Names the rule and the field; never holds a piece of the event."""


class StopEvent(Exception):
    """Ends an event's way through a rule; becomes a :class:`Stopped` where the rule is known."""

    def __init__(self, outcome: Outcome, field: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome
        self.field = field
        self.text = text

    def of(self, rule: str) -> Stopped:
        """Give the record, with the rule's name in its reason."""
        reason = f'rule "{rule}": {self.field}: {self.text}'
        return Stopped(self.outcome, reason)
