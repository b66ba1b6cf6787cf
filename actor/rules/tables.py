"""The tables of a rule file, as a person writes them. ``docs`` explain each key."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from actor.rules.event import Format
from actor.rules.rule import Mode, OnMissing, When
from schemas.decision import Option

__all__ = ["NAME_CHARS_MAX", "QuestionTable", "RuleTable", "SinkTable", "SourceTable"]

NAME_CHARS_MAX = 64
"""Of the names that become parts of subjects, headers and consumers."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+\Z", max_length=NAME_CHARS_MAX)]
Share = Annotated[float, Meta(ge=0, le=1)]
Tables = Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=256)]


class SourceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events."""

    subject: str
    """Subject to read, or, of a stream, the filter; wildcards allowed."""
    stream: Name | None = None
    """Stream to read from; without it the subject is one of core NATS."""
    durable: Name | None = None
    """Name of the stream's consumer. Default: ``semif-`` and the rule's name."""
    queue_group: Name | None = None
    """Queue group of the core subject. Default: ``semif-`` and the rule's name."""


class QuestionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to decide about an event."""

    id: Name
    """The question's name, in headers, templates and replies."""
    question: str
    """The criterion, as the model reads it."""
    options: tuple[Option, ...]
    """2 to 16 options, each with ``id`` and ``description``; their order matters."""
    min_probability: Share = 0.0
    """Least probability of the choice for the answer to be sure."""
    min_margin: Share = 0.0
    """Least distance to the runner-up for the answer to be sure."""
    otherwise: Name | None = None
    """Stands for the choice in the sinks' subjects when the answer is not sure."""


class SinkTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to publish."""

    subject: str
    """Template of the subject."""
    mode: Mode = "annotate"
    """``annotate``, ``decision`` or ``wrap``."""
    stream: Name | None = None
    """The stream that must take it; without it nobody acknowledges."""
    when: When = "always"
    """``always``, ``sure`` or ``unsure``."""


class RuleTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule; the tables inside are read one by one, so that each can have its mistakes."""

    name: Name
    """The rule's name."""
    source: dict[str, Any]
    """A :class:`SourceTable`."""
    questions: Tables
    """One :class:`QuestionTable` or more, asked together."""
    sinks: Tables
    """One :class:`SinkTable` or more."""
    format: Format = "json"
    """What events are: ``json`` or ``text``."""
    state: str | dict[str, str] = "event"
    """``event``, a JSON Pointer, or a table of names and pointers."""
    on_missing: OnMissing | None = None
    """What a pointer that finds nothing does: ``dead`` (default), ``skip`` or ``null``."""
