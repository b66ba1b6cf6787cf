"""From a message to the work it asks, and from scores to the reply: pure, no waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from actor.engine.base import DecisionResult, Question, Scores, Work
from actor.settings import Settings
from schemas.codec import Codec, Request, decode_request
from schemas.decision import (
    Decision,
    Refused,
    Scored,
    ScoreReply,
    ScoreRequest,
    SemifResult,
    ServedBy,
    SharedReply,
    SharedRequest,
    Timing,
)
from schemas.errors import ErrorReply, Invalid, Malformed, SemifError, TooLarge, body_of
from schemas.subjects import (
    CONTENT_TYPE,
    ERROR_CODE_HEADER,
    ERROR_TEXT_HEADER,
    JSON,
    MSG_ID_HEADER,
    PRIORITY_HEADER,
    TIMEOUT_HEADER,
)
from schemas.validation import ID_CHARS_MAX, check_decision, check_ids, check_state

__all__ = [
    "UNREADABLE_HEADERS",
    "Incoming",
    "Record",
    "Reply",
    "answer_reply",
    "answer_to_score",
    "answer_to_shared",
    "error_reply",
    "is_background",
    "read_timeout_s",
    "read_work",
]

UNREADABLE_HEADERS = "semif-unreadable-headers"
"""Stands in the headers of a request whose own could not be read."""
REPLY_HEADER_BYTES_MAX = 512
"""Room kept for a reply's headers: the server counts them against ``max_payload``, nats-py does
not, and one message over the limit closes the connection for good.
"""


class Incoming(msgspec.Struct, frozen=True):
    """A request as it came. Header names are in lower case; times are of ``time.monotonic``."""

    shared: bool
    payload: bytes
    headers: Mapping[str, str]
    received_s: float
    reply_bytes_max: int
    """Largest message the server takes, headers included."""
    caller: str
    """Who asks, as far as the bus can tell; callers get their turns at the GPU."""


Record = ScoreReply | SharedReply
"""What an answer is before it is encoded."""


class Reply(msgspec.Struct, frozen=True):
    """What goes back."""

    payload: bytes
    headers: dict[str, str] | None


def read_timeout_s(headers: Mapping[str, str], settings: Settings) -> float:
    """Give the seconds that the caller will wait, or the default."""
    text = headers.get(TIMEOUT_HEADER.lower())
    if text is None:
        return settings.timeout_ms_default / 1000
    limit = settings.timeout_ms_max
    # isdecimal alone would take the digits of every script, and int() any number of them.
    if text.isascii() and text.isdecimal() and len(text) <= len(str(limit)):
        timeout_ms = int(text)
        if 1 <= timeout_ms <= limit:
            return timeout_ms / 1000
    raise Invalid(f"Give 1 to {limit} milliseconds.", field=TIMEOUT_HEADER)


def is_background(headers: Mapping[str, str]) -> bool:
    """Tell whether the caller lets all others go first."""
    match headers.get(PRIORITY_HEADER.lower()):
        case None | "normal":
            return False
        case "background":
            return True
    raise Invalid("Give normal or background.", field=PRIORITY_HEADER)


def read_work(incoming: Incoming, codec: Codec[Any], settings: Settings) -> Work:
    """Decode and check a request; raises the error of the whole request.

    One bad decision of several does not: its error takes its place.
    """
    if UNREADABLE_HEADERS in incoming.headers:
        raise Malformed("The headers cannot be read.")
    if incoming.shared:
        return _read_shared(incoming, codec, settings)
    request = _decode(incoming, codec, ScoreRequest, settings)
    check_state(request.state)
    check_decision(Decision(id=request.id, question=request.question, options=request.options))
    name = request.id or incoming.headers.get(MSG_ID_HEADER.lower(), "")[:ID_CHARS_MAX]
    question = Question(name or "decision", request.question, request.options)
    return Work(False, request.state, (question.id,), (question,))


def _decode(
    incoming: Incoming, codec: Codec[Any], record: type[Request], settings: Settings
) -> Request:
    return decode_request(
        codec,
        incoming.payload,
        record,
        bytes_max=settings.request_bytes_max,
        depth_max=settings.request_depth_max,
    )


def _read_shared(incoming: Incoming, codec: Codec[Any], settings: Settings) -> Work:
    request = _decode(incoming, codec, SharedRequest, settings)
    check_state(request.state)
    limit = settings.request_decisions_max
    if not 1 <= len(request.decisions) <= limit:
        raise Invalid(f"Ask 1 to {limit} decisions in one request.", field="decisions")
    ids = tuple(
        f"decisions[{index}]" if decision.id is None else decision.id
        for index, decision in enumerate(request.decisions)
    )
    check_ids(ids)  # of the whole request: ids are how its caller tells the answers apart
    questions: list[Question | SemifError] = []
    for index, (name, decision) in enumerate(zip(ids, request.decisions, strict=True)):
        try:
            check_decision(decision, at=f"decisions[{index}].")
        except Invalid as error:
            questions.append(error.with_traceback(None))
        else:
            questions.append(Question(name, decision.question, decision.options))
    return Work(True, request.state, ids, tuple(questions))


def answer_to_score(scores: Scores, timing: Timing, served_by: ServedBy) -> ScoreReply:
    """Give the reply to a ``score`` request."""
    [result] = scores.results
    if isinstance(result, SemifError):
        raise result
    return ScoreReply(
        **_semif_fields(result),
        forward_seconds=result.forward_seconds,
        total_seconds=result.total_seconds,
        timing=timing,
        served_by=served_by,
    )


def answer_to_shared(
    work: Work, scores: Scores, timing: Timing, served_by: ServedBy
) -> SharedReply:
    """Give the reply to a ``score_shared`` request."""
    results = tuple(
        Refused(id=name, error=body_of(result))
        if isinstance(result, SemifError)
        else Scored(**_semif_fields(result))
        for name, result in zip(work.ids, scores.results, strict=True)
    )
    return SharedReply(results=results, timing=timing, served_by=served_by)


def _semif_fields(result: DecisionResult) -> dict[str, Any]:
    """Give SemIf's fields and what follows from them: the choice and its margin."""
    ranked = sorted(result.probabilities, reverse=True)
    best = result.probabilities.index(ranked[0])  # the first declared wins a tie
    fields = {name: getattr(result, name) for name in SemifResult.__struct_fields__}
    return fields | {"choice": result.option_ids[best], "margin": ranked[0] - ranked[1]}


def answer_reply(answer: Record, codec: Codec[Any], *, reply_bytes_max: int) -> Reply:
    """Encode an answer; raises :class:`TooLarge` when the server would not carry it."""
    payload = codec.encode(answer)
    limit = reply_bytes_max - REPLY_HEADER_BYTES_MAX
    if len(payload) > limit:
        raise TooLarge(
            "The reply is larger than the server carries; ask fewer decisions at once",
            size=len(payload),
            limit=limit,
            unit="bytes",
        )
    return Reply(payload, _content_type(codec) or None)


def error_reply(error: SemifError, codec: Codec[Any]) -> Reply:
    """Encode an error: the two ADR-32 headers and a body."""
    headers = {ERROR_TEXT_HEADER: error.summary, ERROR_CODE_HEADER: str(error.status)}
    return Reply(codec.encode(ErrorReply(error=body_of(error))), headers | _content_type(codec))


def _content_type(codec: Codec[Any]) -> dict[str, str]:
    """JSON is the default and costs no header: headers cost a quarter of nats-py's throughput."""
    return {} if codec.media_type == JSON else {CONTENT_TYPE: codec.media_type}
