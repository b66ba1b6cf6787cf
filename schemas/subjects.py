"""Every subject and header name. Nothing else in the code spells one."""

from __future__ import annotations

import msgspec

__all__ = [
    "CHOICE_HEADER",
    "CLOUDEVENTS_JSON",
    "CLOUDEVENT_HEADER",
    "CLOUDEVENT_TYPE",
    "CONTENT_TYPE",
    "DEAD_CODE_HEADER",
    "DEAD_DELIVERIES_HEADER",
    "DEAD_HEADER",
    "DEAD_REASON_HEADER",
    "DEAD_SEQUENCE_HEADER",
    "DEAD_STREAM_HEADER",
    "DEAD_SUBJECT_HEADER",
    "DEAD_TRUNCATED_HEADER",
    "ERROR_CODE_HEADER",
    "ERROR_TEXT_HEADER",
    "EVENT_ID_HEADER",
    "EVENT_SUBJECT_HEADER",
    "EXPECTED_LAST_ID_HEADER",
    "EXPECTED_STREAM_HEADER",
    "HOPS_HEADER",
    "JETSTREAM_ACK",
    "JETSTREAM_API",
    "JSON",
    "MARGIN_HEADER",
    "MSGPACK",
    "MSG_ID_HEADER",
    "NATS_HEADER",
    "PRIORITY_HEADER",
    "PROBABILITY_HEADER",
    "PROOF_HEADER",
    "RULE_HEADER",
    "SCORE",
    "SCORE_SHARED",
    "SERVICE",
    "STATUS",
    "SURE_HEADER",
    "TIMEOUT_HEADER",
    "TRACEPARENT_HEADER",
    "TRACESTATE_HEADER",
    "DiscoverySubjects",
    "Subjects",
]

SERVICE = "semif"
"""Name of the service in the NATS services protocol (ADR-32)."""
SCORE = "score"
SCORE_SHARED = "score_shared"
STATUS = "status"
"""Names of the endpoints: the last tokens of their subjects."""

CONTENT_TYPE = "Content-Type"
JSON = "application/json"
MSGPACK = "application/msgpack"
TIMEOUT_HEADER = "Semif-Timeout-Ms"
"""Milliseconds the caller will wait, counted from receipt: no clock is shared."""
PRIORITY_HEADER = "Semif-Priority"
"""``background``: score it when nothing else waits. ``normal`` is the default."""
MSG_ID_HEADER = "Nats-Msg-Id"
TRACEPARENT_HEADER = "traceparent"
TRACESTATE_HEADER = "tracestate"
ERROR_TEXT_HEADER = "Nats-Service-Error"
ERROR_CODE_HEADER = "Nats-Service-Error-Code"
"""ADR-32: clients tell an error reply from an answer by these two headers."""
EXPECTED_STREAM_HEADER = "Nats-Expected-Stream"
"""The server refuses a publication that another stream, or none, would take."""
EXPECTED_LAST_ID_HEADER = "Nats-Expected-Last-Msg-Id"
"""The server refuses a publication that does not follow the message of this id."""

RULE_HEADER = "Semif-Rule"
"""Name of the rule that published this."""
CHOICE_HEADER = "Semif-Choice"
PROBABILITY_HEADER = "Semif-Probability"
MARGIN_HEADER = "Semif-Margin"
SURE_HEADER = "Semif-Sure"
"""Of the decision; ``-<question id>`` follows each of the four when the rule asks several
questions, and ``Semif-Sure`` alone is then ``true`` when every one of them is sure.
"""
PROOF_HEADER = "Semif-Proof"
"""Hash of the start report of the actor that decided."""
EVENT_ID_HEADER = "Semif-Event-Id"
"""What the event that was decided is known by."""
EVENT_SUBJECT_HEADER = "Semif-Event-Subject"
"""Where that event came from."""
HOPS_HEADER = "Semif-Hops"
"""Rules that an event has been through: what stops a loop that no file shows."""

CLOUDEVENT_HEADER = "ce-"
"""Beginning of the headers that hold a CloudEvent's attributes in binary mode."""
CLOUDEVENTS_JSON = "application/cloudevents+json"
CLOUDEVENT_TYPE = "semif.decision.v1"
"""The ``type`` of a decision that is a CloudEvent."""

NATS_HEADER = "Nats-"
"""Beginning of the headers that the server, or a client, obeys."""
DEAD_HEADER = "Semif-Dead-"
"""Beginning of the headers that a dead letter has beside those of its message."""
DEAD_CODE_HEADER = "Semif-Dead-Code"
"""What became of the message; see docs/pipelines.md for every code."""
DEAD_REASON_HEADER = "Semif-Dead-Reason"
"""For people; holds nothing of the message."""
DEAD_DELIVERIES_HEADER = "Semif-Dead-Deliveries"
DEAD_STREAM_HEADER = "Semif-Dead-Stream"
DEAD_SEQUENCE_HEADER = "Semif-Dead-Sequence"
DEAD_SUBJECT_HEADER = "Semif-Dead-Subject"
"""How often the message was delivered, and where it came from."""
DEAD_TRUNCATED_HEADER = "Semif-Dead-Truncated"
"""Bytes of the whole body, when there was no room for it and these headers."""

JETSTREAM_API = "$JS.API"
"""Leading tokens of JetStream's own services."""
JETSTREAM_ACK = "$JS.ACK"
"""Leading tokens of the reply subject of what a consumer delivers."""


class Subjects(msgspec.Struct, frozen=True):
    """The subjects under one prefix."""

    prefix: str = "semif.v1"
    """Leading tokens of every subject; the version of the contract is the last of them."""

    @property
    def score(self) -> str:
        """Request, queue group: one decision."""
        return f"{self.prefix}.{SCORE}"

    @property
    def score_shared(self) -> str:
        """Request, queue group: several decisions over one state."""
        return f"{self.prefix}.{SCORE_SHARED}"

    @property
    def status(self) -> str:
        """Request, no queue group: every actor answers with its heartbeat."""
        return f"{self.prefix}.{STATUS}"

    def health(self, instance: str) -> str:
        """Published: heartbeats of ``instance`` (``*`` to watch them all)."""
        return f"{self.prefix}.health.{instance}"

    def jobs(self, rest: str) -> str:
        """Read from a stream: requests as jobs."""
        return f"{self.prefix}.jobs.{rest}"

    def results(self, rest: str) -> str:
        """Published to a stream: the result of the job on ``jobs`` and ``rest``."""
        return f"{self.prefix}.results.{rest}"

    def dead(self, rest: str) -> str:
        """Published to a stream: a message that cannot be done."""
        return f"{self.prefix}.dead.{rest}"


class DiscoverySubjects(msgspec.Struct, frozen=True):
    """The subjects of the NATS services protocol (ADR-32) that one actor listens on."""

    prefix: str
    """Leading tokens, ``$SRV`` unless an operator moved it."""
    instance: str
    """Name of the actor, the service's id."""

    def of(self, verb: str) -> tuple[str, str, str]:
        """Give the subjects that ask every service, those of our name, and this actor alone."""
        every = f"{self.prefix}.{verb}"
        return every, f"{every}.{SERVICE}", f"{every}.{SERVICE}.{self.instance}"
