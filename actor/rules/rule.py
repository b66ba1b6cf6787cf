"""A rule as it is carried out: checked, with its templates and pointers read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actor.engine.base import Question
from actor.rules.event import Format
from actor.rules.pointer import Pointer
from actor.rules.template import Template

__all__ = [
    "Asking",
    "CoreSource",
    "Mode",
    "OnMissing",
    "Picked",
    "Rule",
    "Sink",
    "StreamSource",
    "When",
]

Mode = Literal["annotate", "decision", "wrap"]
OnMissing = Literal["dead", "skip", "null"]
When = Literal["always", "sure", "unsure"]


@dataclass(frozen=True, slots=True)
class CoreSource:
    """A subject of core NATS: each event comes once, to one actor of the queue group."""

    subject: str
    queue_group: str


@dataclass(frozen=True, slots=True)
class StreamSource:
    """Those messages of a stream whose subject fits, read by a durable pull consumer."""

    subject: str
    """Filter subject of the consumer."""
    stream: str
    durable: str


@dataclass(frozen=True, slots=True)
class Picked:
    """One named field of a state that is put together."""

    name: str
    pointer: Pointer


@dataclass(frozen=True, slots=True)
class Asking:
    """A question, and when its answer is sure."""

    question: Question
    min_probability: float
    min_margin: float
    otherwise: str | None
    """Stands for the choice in subjects when the answer is not sure; None: the choice itself."""

    @property
    def routes(self) -> tuple[str, ...]:
        """Every name that can stand for the choice in a subject."""
        options = tuple(option.id for option in self.question.options)
        return options if self.otherwise is None else (*options, self.otherwise)


@dataclass(frozen=True, slots=True)
class Sink:
    """One place to publish to."""

    subject: Template
    mode: Mode
    stream: str | None
    """The stream that must take it, and must say so; None: a core subject."""
    when: When


@dataclass(frozen=True, slots=True)
class Rule:
    """What is asked about which events, and where the answers go."""

    name: str
    source: CoreSource | StreamSource
    form: Format
    state: Pointer | tuple[Picked, ...] | None
    """None: the whole event."""
    on_missing: OnMissing
    asking: tuple[Asking, ...]
    sinks: tuple[Sink, ...]
    hops_max: int
    """Rules that an event may have been through, this one included."""
