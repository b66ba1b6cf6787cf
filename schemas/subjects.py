"""Every subject and header name. Nothing else in the code spells one."""

from __future__ import annotations

import msgspec

__all__ = [
    "CONTENT_TYPE",
    "ERROR_CODE_HEADER",
    "ERROR_TEXT_HEADER",
    "JSON",
    "MSGPACK",
    "MSG_ID_HEADER",
    "TIMEOUT_HEADER",
    "TRACEPARENT_HEADER",
    "Subjects",
]

CONTENT_TYPE = "Content-Type"
JSON = "application/json"
MSGPACK = "application/msgpack"
TIMEOUT_HEADER = "Semif-Timeout-Ms"
"""Milliseconds the caller will wait, counted from receipt: no clock is shared."""
MSG_ID_HEADER = "Nats-Msg-Id"
TRACEPARENT_HEADER = "traceparent"
ERROR_TEXT_HEADER = "Nats-Service-Error"
ERROR_CODE_HEADER = "Nats-Service-Error-Code"
"""ADR-32: clients tell an error reply from an answer by these two headers."""


class Subjects(msgspec.Struct, frozen=True):
    """The subjects under one prefix."""

    prefix: str = "semif.v1"
    """Leading tokens of every subject; the version of the contract is the last of them."""

    @property
    def score(self) -> str:
        """Request, queue group: one decision."""
        return f"{self.prefix}.score"

    @property
    def score_shared(self) -> str:
        """Request, queue group: several decisions over one state."""
        return f"{self.prefix}.score_shared"

    @property
    def status(self) -> str:
        """Request, no queue group: every actor answers with its heartbeat."""
        return f"{self.prefix}.status"

    def health(self, instance: str) -> str:
        """Published: heartbeats of ``instance`` (``*`` to watch them all)."""
        return f"{self.prefix}.health.{instance}"
