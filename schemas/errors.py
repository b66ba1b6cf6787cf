"""Errors as they travel: one class for each row of the error table.

::

    SemifError                      status  retryable
     ├─ Malformed                      400  no
     ├─ TooLarge                       413  no
     ├─ UnsupportedMediaType           415  no
     ├─ Invalid                        422  no
     │   └─ ControlText                422  no
     ├─ Overloaded                     429  yes
     ├─ ScoringFailed                  500  no
     ├─ Draining                       503  yes
     ├─ DeadlineExceeded               504  yes
     └─ OutOfMemory                    507  yes

Each class carries its wire code; each instance carries its facts as fields and builds its own
sentence from them. Sentences are fixed texts with numbers and field names in them: never an
exception's text, a path or a piece of the payload.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

__all__ = [
    "ERRORS",
    "ControlText",
    "DeadlineExceeded",
    "Draining",
    "ErrorBody",
    "ErrorReply",
    "Invalid",
    "Malformed",
    "OutOfMemory",
    "Overloaded",
    "ScoringFailed",
    "SemifError",
    "TooLarge",
    "UnsupportedMediaType",
    "body_of",
    "worth_another_delivery",
]


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request, or one decision of a ``score_shared`` request, has no answer."""

    code: str
    """The error's stable name, e.g. ``overloaded``: what programs branch on."""
    status: int
    """The HTTP status of the same meaning; also in header ``Nats-Service-Error-Code``."""
    message: str
    """One sentence for the person who must act. Not stable: do not parse it."""
    retryable: bool
    """True when the same request may succeed later, or at another actor."""
    retry_after_ms: int | None = None
    """Milliseconds to wait before a retry, from the measured rate of this actor."""
    field: str | None = None
    """The field or header at fault, as a path: ``decisions[2].options[0].description``."""


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every reply that carries an error."""

    error: ErrorBody
    """What went wrong."""


class SemifError(Exception):
    """Base of every error that becomes a reply."""

    code: ClassVar[str]
    status: ClassVar[int]
    retryable: ClassVar[bool] = False
    summary: ClassVar[str]
    """Fixed text of the ``Nats-Service-Error`` header, ASCII."""

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message or f"{self.summary}.")
        self.field = field
        self.retry_after_ms = retry_after_ms


class Malformed(SemifError):
    """The body cannot be read as JSON or MessagePack within the limits."""

    code = "malformed"
    status = 400
    summary = "The body is not valid JSON or MessagePack"


class TooLarge(SemifError):
    """A message or a prompt is over a limit. ``size`` and ``limit`` are in ``unit``."""

    code = "too_large"
    status = 413
    summary = "The request is over a size limit"

    def __init__(
        self, what: str, *, size: int, limit: int, unit: str, field: str | None = None
    ) -> None:
        super().__init__(f"{what}: {size} {unit}, the limit is {limit}.", field=field)
        self.size = size
        self.limit = limit
        self.unit = unit


class UnsupportedMediaType(SemifError):
    """``Content-Type`` names a format that is not served."""

    code = "unsupported_media_type"
    status = 415
    summary = "Content-Type must be application/json or application/msgpack"

    def __init__(self) -> None:
        super().__init__(field="Content-Type")


class Invalid(SemifError):
    """The body is readable, but is not a decision that can be asked."""

    code = "invalid"
    status = 422
    summary = "The request is not a valid decision"


class ControlText(Invalid):
    """The text holds one of the model's control tokens, which this scorer cannot take as text."""

    code = "control_text"
    status = 422
    summary = "The text holds a control token of the model"

    def __init__(self, *, field: str | None = None) -> None:
        super().__init__(
            "The text holds a control token of the model; the reference scorer would obey it, "
            "so the request is refused.",
            field=field,
        )


class Overloaded(SemifError):
    """The queue is full; ``retry_after_ms`` is the time the actor needs for what it holds."""

    code = "overloaded"
    status = 429
    retryable = True
    summary = "The queue is full"

    def __init__(self, what: str, *, limit: int, unit: str, retry_after_ms: int) -> None:
        super().__init__(f"{what}, the limit is {limit} {unit}.", retry_after_ms=retry_after_ms)
        self.limit = limit
        self.unit = unit


class ScoringFailed(SemifError):
    """The model gave no usable answer. The reason is in the actor's log, not in the reply."""

    code = "scoring_failed"
    status = 500
    summary = "The model gave no usable answer"


class Draining(SemifError):
    """This actor is stopping; another one, or the next start, will answer."""

    code = "draining"
    status = 503
    retryable = True
    summary = "This actor is stopping"


class DeadlineExceeded(SemifError):
    """The time that the caller gave is over. The work was dropped, or its answer is discarded."""

    code = "deadline_exceeded"
    status = 504
    retryable = True
    summary = "The deadline passed before an answer was ready"


class OutOfMemory(SemifError):
    """The device has no room for this request now."""

    code = "out_of_memory"
    status = 507
    retryable = True
    summary = "The device has no memory left for this request"


ERRORS: tuple[type[SemifError], ...] = (
    Malformed,
    TooLarge,
    UnsupportedMediaType,
    Invalid,
    ControlText,
    Overloaded,
    ScoringFailed,
    Draining,
    DeadlineExceeded,
    OutOfMemory,
)
"""Every row of the error table."""


def body_of(error: SemifError) -> ErrorBody:
    """Give the wire form of ``error``."""
    return ErrorBody(
        code=error.code,
        status=error.status,
        message=str(error),
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms,
        field=error.field,
    )


def worth_another_delivery(error: SemifError | ErrorBody) -> bool:
    """True when a stored message that met ``error`` should be delivered again.

    After ``scoring_failed`` too: an engine that fails takes a whole batch with it, the innocent
    with the guilty. A caller is not told to retry, or the guilty would come back for ever; a
    stored message has its last delivery.
    """
    return error.retryable or error.code == ScoringFailed.code
