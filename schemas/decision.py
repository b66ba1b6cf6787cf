"""Requests and replies: a decision asked, its answer, and what a rule makes of one.

Field names and values of an answer are SemIf's own (``semif_phase1.direct.score`` and
``semif_phase1.shared.score_shared``); what semif-actor adds stands after them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.errors import ErrorBody

__all__ = [
    "OPTIONS_MAX",
    "OPTIONS_MIN",
    "Decision",
    "ModelInfo",
    "Option",
    "Refused",
    "ScoreReply",
    "ScoreRequest",
    "Scored",
    "SemifResult",
    "ServedBy",
    "SharedReply",
    "SharedRequest",
    "State",
    "Timing",
    "Wrapped",
]

OPTIONS_MIN = 2
OPTIONS_MAX = 16
"""SemIf letters the options A..P (``semif_phase1.core.LETTERS``)."""

State = str | dict[str, Any] | list[Any]
"""The evidence: a non-empty string, object or array of JSON values."""


class Option(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One possible answer."""

    id: str
    """The caller's name for the option; never shown to the model. Unique in its decision."""
    description: str
    """What the option means, as the model reads it. Not blank, unlike the other options'."""


class ScoreRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One decision: how likely is each option, given this state and this question."""

    state: State
    """The evidence: a non-empty string, object or array."""
    question: str
    """The criterion to apply to the evidence."""
    options: tuple[Option, ...]
    """2 to 16 options; their order is part of the question and is never changed."""
    id: str | None = None
    """The caller's name for the decision, echoed in the reply. Default: ``Nats-Msg-Id``."""


class Decision(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One of several decisions over the same state."""

    question: str
    """The criterion to apply to the evidence."""
    options: tuple[Option, ...]
    """2 to 16 options; their order is part of the question and is never changed."""
    id: str | None = None
    """The caller's name for the decision, unique in the request. Default: ``decisions[N]``."""


class SharedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several decisions over one state, which the model reads once."""

    state: State
    """The evidence: a non-empty string, object or array."""
    decisions: tuple[Decision, ...]
    """At least one decision."""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """SemIf's model metadata."""

    source: str
    """Where the weights came from: a model's name, never a path of the serving machine."""
    revision: str
    """The pinned revision: 40 hexadecimal digits, or the revision in the local manifest."""
    dtype: str
    """Number format of the weights, e.g. ``bfloat16``."""
    torch_version: str
    """Version of PyTorch."""
    transformers_version: str
    """Version of transformers."""
    serving_config: str | None = None
    """How ``score_shared`` ran (SemIf's name for it); absent for ``score``."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a request went."""

    queue_ms: float
    """Milliseconds the encoded request waited for the model."""
    encode_ms: float
    """Milliseconds spent on checking and tokenising the prompts before the queue."""
    forward_ms: float
    """Milliseconds the scorer ran for this request."""
    total_ms: float
    """Milliseconds from receipt of the message to the encoding of this reply."""
    batch_rows: int
    """Largest number of prompts that went through the model together for this request."""
    prefix_tokens_reused: int
    """Prompt tokens that the model did not have to read again."""


class ServedBy(msgspec.Struct, frozen=True, kw_only=True):
    """Who answered, and what it had proved."""

    instance: str
    """Name of the actor; its heartbeat is on ``<prefix>.health.<instance>``."""
    scorer: str
    """Scorer in use: ``reference`` is SemIf's own code."""
    proof: str
    """Hash of the start report: equal hashes mean equal proofs on equal weights and code."""


class SemifResult(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every SemIf result has, unchanged in name and value."""

    id: str
    """The decision's id."""
    option_ids: tuple[str, ...]
    """Option ids in the order asked; the two lists below follow it."""
    probabilities: tuple[float, ...]
    """Softmax of ``option_logits``: conditional on the options given, and uncalibrated."""
    option_logits: tuple[float, ...]
    """Next-token logits of the option letters."""
    input_tokens: int
    """Length of the prompt in tokens."""
    prompt_sha256: str
    """SHA-256 of the prompt text, hexadecimal."""
    prompt_version: str
    """SemIf's name for the form of the prompt."""
    model: ModelInfo
    """Which model answered."""
    readout: str
    """SemIf's description of where the logits were read."""
    probability_status: str
    """SemIf's warning: these are option scores, not calibrated confidence."""


class ScoreReply(SemifResult, frozen=True, kw_only=True):
    """Answer to a ``score`` request."""

    forward_seconds: float
    """SemIf's own measure: seconds in the forward pass."""
    total_seconds: float
    """SemIf's own measure: seconds in its ``score``."""
    choice: str
    """Id of the most likely option; of equal ones the first declared."""
    margin: float
    """Probability of the choice less that of the runner-up: 0 is a tie."""
    timing: Timing
    """Where the time went."""
    served_by: ServedBy
    """Who answered."""


class Scored(SemifResult, frozen=True, kw_only=True, tag_field="outcome", tag="scored"):
    """One answered decision of a ``score_shared`` request."""

    choice: str
    """Id of the most likely option; of equal ones the first declared."""
    margin: float
    """Probability of the choice less that of the runner-up: 0 is a tie."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag_field="outcome", tag="error"):
    """One decision of a ``score_shared`` request that has no answer; its neighbours may."""

    id: str
    """The decision's id."""
    error: ErrorBody
    """What went wrong."""


class SharedReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a ``score_shared`` request."""

    results: tuple[Scored | Refused, ...]
    """One entry for each decision, in the order asked."""
    timing: Timing
    """Where the time went."""
    served_by: ServedBy
    """Who answered."""


class Wrapped(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule publishes in mode ``wrap``: an event, and the decision about it."""

    rule: str
    """Name of the rule."""
    subject: str
    """Where the event came from."""
    event: Any
    """The event as it came: its JSON, or its text. Of a CloudEvent in structured mode the whole
    envelope.
    """
    decision: Any
    """The reply, as a caller of ``score`` (one question) or ``score_shared`` would get it."""
