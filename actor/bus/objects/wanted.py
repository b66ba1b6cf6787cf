"""What the settings and the rules need of JetStream, before anybody has looked at a server."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from actor.rules.rule import Asking, Rule, Sink, StreamSource
from actor.settings import Settings
from schemas.subjects import Subjects

__all__ = ["OwnStream", "SinkStream", "SourceStream", "Wanted", "WantedConsumer", "wanted_objects"]

ACTORS_SERVED = 64
"""For the limit of what a consumer has out at once, which all its actors share. Each fetches no
more than its own queue has room for, so the limit has only to stay above their sum: one below it
would leave actors idle beside a full stream.
"""
HEADER_BYTES = 16_384
"""Room for what a result or a dead letter has besides its body."""
ROUTES_MAX = 4096
"""Subjects of one sink that are looked at one by one."""

_CHOICE = re.compile(r"\{choice(?::([^{}]*))?\}")
_OTHER = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class OwnStream:
    """A stream that is only there for us, and that ``stream apply`` makes."""

    name: str
    holds: Literal["jobs", "results", "dead letters"]
    subject: str
    dedup_ns: int
    message_bytes_max: int
    """What it must be able to take."""

    @property
    def retention(self) -> Literal["workqueue", "limits"]:
        """A job is deleted when it is done; what came of it stays."""
        return "workqueue" if self.holds == "jobs" else "limits"


@dataclass(frozen=True, slots=True)
class SourceStream:
    """A user's stream that a rule reads: never made nor changed by us."""

    name: str
    rule: str
    subject: str


@dataclass(frozen=True, slots=True)
class SinkStream:
    """A user's stream that a rule publishes to: never made nor changed by us."""

    name: str
    rule: str
    subjects: tuple[str, ...]
    """Each must be one it takes; wildcards stand for what only an event tells."""
    dedup_ns: int


@dataclass(frozen=True, slots=True)
class WantedConsumer:
    """A durable pull consumer that actors share."""

    stream: str
    durable: str
    reads: str
    """``jobs``, or the rule it is for."""
    subject: str
    ack_wait_ns: int
    ack_pending_min: int
    """One actor's queue: with less it would wait beside work."""
    ack_pending: int
    """What it is made with."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Everything together."""

    requests: tuple[str, ...]
    """Subjects that no stream may take: a caller would get its acknowledgement for an answer."""
    own: tuple[OwnStream, ...]
    sources: tuple[SourceStream, ...]
    sinks: tuple[SinkStream, ...]
    consumers: tuple[WantedConsumer, ...]

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of all streams, each once."""
        streams: tuple[OwnStream | SourceStream | SinkStream, ...]
        streams = (*self.own, *self.sources, *self.sinks)
        return tuple(dict.fromkeys(stream.name for stream in streams))


def wanted_objects(settings: Settings, rules: Sequence[Rule]) -> Wanted:
    """Give all that must be there for these settings and rules."""
    subjects = Subjects(settings.subject_prefix)
    reading = [(rule, rule.source) for rule in rules if isinstance(rule.source, StreamSource)]
    dedup_ns = _nanoseconds(settings.dedup_s)
    own = []
    if settings.jobs:
        own.append(_own(settings, settings.jobs_stream, "jobs", subjects.jobs(">")))
        own.append(_own(settings, settings.results_stream, "results", subjects.results(">")))
    if settings.jobs or rules:
        own.append(_own(settings, settings.dead_stream, "dead letters", subjects.dead(">")))
    consumers = [
        _consumer(settings, source.stream, source.durable, f'rule "{rule.name}"', source.subject)
        for rule, source in reading
    ]
    if settings.jobs:
        jobs = (settings.jobs_stream, settings.jobs_durable, "jobs", subjects.jobs(">"))
        consumers.insert(0, _consumer(settings, *jobs))
    return Wanted(
        requests=(
            subjects.score,
            subjects.score_shared,
            subjects.status,
            f"{settings.srv_prefix}.>",
        ),
        own=tuple(own),
        sources=tuple(SourceStream(src.stream, rule.name, src.subject) for rule, src in reading),
        sinks=tuple(
            SinkStream(sink.stream, rule.name, _subjects_of(rule, sink), dedup_ns)
            for rule in rules
            for sink in rule.sinks
            if sink.stream is not None
        ),
        consumers=tuple(consumers),
    )


def _own(
    settings: Settings,
    name: str,
    holds: Literal["jobs", "results", "dead letters"],
    subject: str,
) -> OwnStream:
    bytes_max = settings.request_bytes_max + HEADER_BYTES
    return OwnStream(name, holds, subject, _nanoseconds(settings.dedup_s), bytes_max)


def _consumer(
    settings: Settings, stream: str, durable: str, reads: str, subject: str
) -> WantedConsumer:
    return WantedConsumer(
        stream,
        durable,
        reads,
        subject,
        ack_wait_ns=_nanoseconds(settings.ack_wait_s),
        ack_pending_min=settings.queue_jobs_max,
        ack_pending=settings.queue_jobs_max * ACTORS_SERVED,
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _subjects_of(rule: Rule, sink: Sink) -> tuple[str, ...]:
    """Give what a sink's subjects can be: a choice by each name, an event's parts as wildcards.

    ``{subject}``, which may be several tokens, is ``>``, here also before others.
    """
    known = sink.subject.text.replace("{rule}", rule.name)
    named = set(_CHOICE.findall(known))  # "" for the only question
    routes = [
        _routes(rule, asking, sink) if named & {"", asking.question.id} else ("",)
        for asking in rule.asking
    ]
    ids = [asking.question.id for asking in rule.asking]
    found: dict[str, None] = {}
    for choices in itertools.islice(itertools.product(*routes), ROUTES_MAX):
        chosen = known.replace("{choice}", choices[0])
        for question, choice in zip(ids, choices, strict=True):
            chosen = chosen.replace(f"{{choice:{question}}}", choice)
        # Before the text is cut at its points: a pointer may hold some.
        marked = _OTHER.sub("*", chosen.replace("{subject}", ">"))
        tokens = ("*" if "*" in token else token for token in marked.split("."))
        found[".".join(tokens)] = None
    return tuple(found)


def _routes(rule: Rule, asking: Asking, sink: Sink) -> tuple[str, ...]:
    """Give what can stand for the choice of a question in this sink."""
    if asking.otherwise is None or sink.when == "sure":
        return tuple(option.id for option in asking.question.options)
    alone = sink.when == "unsure" and len(rule.asking) == 1
    return (asking.otherwise,) if alone else asking.routes
