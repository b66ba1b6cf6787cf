"""The messages of the AsyncAPI document: headers, payload, examples."""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.errors import ERRORS
from schemas.examples import EXAMPLES
from schemas.subjects import (
    CHOICE_HEADER,
    CONTENT_TYPE,
    DEAD_CODE_HEADER,
    DEAD_DELIVERIES_HEADER,
    DEAD_REASON_HEADER,
    DEAD_SEQUENCE_HEADER,
    DEAD_STREAM_HEADER,
    DEAD_SUBJECT_HEADER,
    DEAD_TRUNCATED_HEADER,
    ERROR_CODE_HEADER,
    ERROR_TEXT_HEADER,
    EVENT_ID_HEADER,
    EVENT_SUBJECT_HEADER,
    HOPS_HEADER,
    JSON,
    MARGIN_HEADER,
    MSG_ID_HEADER,
    MSGPACK,
    PRIORITY_HEADER,
    PROBABILITY_HEADER,
    PROOF_HEADER,
    RULE_HEADER,
    SURE_HEADER,
    TIMEOUT_HEADER,
    TRACEPARENT_HEADER,
)

__all__ = ["messages"]


def _text(description: str, **keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords, "description": description}


_CONTENT_TYPE_HEADER = _text(
    "Format of the body. Replies in JSON go without this header.",
    enum=[JSON, MSGPACK],
    default=JSON,
)
_REQUEST_HEADERS = {
    CONTENT_TYPE: _CONTENT_TYPE_HEADER,
    TIMEOUT_HEADER: _text(
        "Milliseconds the caller will wait, counted from receipt.", pattern="^[0-9]+$"
    ),
    PRIORITY_HEADER: _text(
        "`background`: score it when nothing else waits.", enum=["normal", "background"]
    ),
    MSG_ID_HEADER: _text("Default of `id` in the body of a `score` request."),
    TRACEPARENT_HEADER: _text("W3C trace context of the caller."),
}
_REPLY_HEADERS = {
    CONTENT_TYPE: _CONTENT_TYPE_HEADER,
    MSG_ID_HEADER: _text("Of a job's result only: stream, sequence and time of the job."),
}
_ERROR_HEADERS = {
    CONTENT_TYPE: _CONTENT_TYPE_HEADER,
    ERROR_TEXT_HEADER: _text(
        "Fixed text of the error.", examples=[error.summary for error in ERRORS]
    ),
    ERROR_CODE_HEADER: _text(
        "HTTP status of the same meaning. An answer has no such header.",
        examples=sorted({str(error.status) for error in ERRORS}),
    ),
}
_DECISION_HEADERS = {
    RULE_HEADER: _text("Name of the rule."),
    CHOICE_HEADER: _text(
        "Id of the most likely option. Of a rule with several questions the question's id follows "
        "the name of this header and of the next three."
    ),
    PROBABILITY_HEADER: _text("Of the choice.", pattern=r"^[01]\.[0-9]{6}$"),
    MARGIN_HEADER: _text("Its distance to the runner-up.", pattern=r"^[01]\.[0-9]{6}$"),
    SURE_HEADER: _text(
        "Whether the answer passes the rule's thresholds; of several questions, whether all do.",
        enum=["true", "false"],
    ),
    EVENT_SUBJECT_HEADER: _text("Where the event came from."),
    EVENT_ID_HEADER: _text("What the event is known by, if anything."),
    HOPS_HEADER: _text("Rules that the event has been through.", pattern="^[0-9]+$"),
    PROOF_HEADER: _text("Hash of the start report of the actor that decided."),
    MSG_ID_HEADER: _text("Into a stream only: made of rule, sink and event."),
}
_DECISION_HEADERS_ALWAYS = [
    RULE_HEADER,
    SURE_HEADER,
    EVENT_SUBJECT_HEADER,
    HOPS_HEADER,
    PROOF_HEADER,
]
_DEAD_HEADERS = {
    DEAD_CODE_HEADER: _text("An error's code, an outcome of the rule, or `gave_up`."),
    DEAD_REASON_HEADER: _text("Why, for people."),
    DEAD_DELIVERIES_HEADER: _text("Times it was delivered.", pattern="^[0-9]+$"),
    DEAD_SUBJECT_HEADER: _text("Where it came from."),
    DEAD_STREAM_HEADER: _text("Its stream there, if it was in one."),
    DEAD_SEQUENCE_HEADER: _text("Its sequence in that stream.", pattern="^[0-9]+$"),
    DEAD_TRUNCATED_HEADER: _text("Bytes of the whole body, when there was no room for it."),
    MSG_ID_HEADER: _text(
        "Of a stream's message: the rest of this subject, then its stream, sequence and time."
    ),
}
_DEAD_HEADERS_ALWAYS = [
    DEAD_CODE_HEADER,
    DEAD_REASON_HEADER,
    DEAD_DELIVERIES_HEADER,
    DEAD_SUBJECT_HEADER,
]


def messages() -> dict[str, Any]:
    """Give every message by its name."""
    return {
        "score_request": _message("score_request", "A decision asked.", _REQUEST_HEADERS),
        "score_reply": _message("score_reply", "Its answer.", _REPLY_HEADERS),
        "shared_request": _message("shared_request", "Several asked.", _REQUEST_HEADERS),
        "shared_reply": _message(
            "shared_reply", "An answer or an error for each decision.", _REPLY_HEADERS
        ),
        "error_reply": _message(
            "error_reply",
            "Why a request has no answer.",
            _ERROR_HEADERS,
            required=[ERROR_TEXT_HEADER, ERROR_CODE_HEADER],
        ),
        "status_request": _bare("status_request", "Any body; it is not read."),
        "heartbeat": _message("heartbeat", "What an actor says of itself, in JSON.", {}),
        **_messages_of_rules(),
        "dead_letter": _bare(
            "dead_letter",
            "A job or an event as it was, with its own headers.",
            _DEAD_HEADERS,
            required=_DEAD_HEADERS_ALWAYS,
        ),
    }


def _messages_of_rules() -> dict[str, Any]:
    decided = {"required": _DECISION_HEADERS_ALWAYS}
    replies = [{"$ref": f"./{name}.json"} for name in ("score_reply", "shared_reply")]
    return {
        "event": _bare("event", "Anybody's: JSON, text, or a CloudEvent."),
        "annotated": _bare(
            "annotated",
            "Mode `annotate`: the event as it was, with its own headers and these.",
            _DECISION_HEADERS,
            **decided,
        ),
        "decision": _bare(
            "decision", "Mode `decision`: the reply about the event.", _DECISION_HEADERS, **decided
        )
        | {"contentType": JSON, "payload": {"anyOf": replies}},
        "wrapped": _message(
            "wrapped", "Mode `wrap`: the event and the reply.", _DECISION_HEADERS, **decided
        ),
    }


def _bare(
    name: str,
    summary: str,
    headers: dict[str, Any] | None = None,
    *,
    required: list[str] | None = None,
) -> dict[str, Any]:
    """Give a message without a schema of its own."""
    told = {"type": "object", "properties": headers} | ({"required": required} if required else {})
    return {"name": name, "summary": summary, **({"headers": told} if headers else {})}


def _message(
    name: str, summary: str, headers: dict[str, Any], *, required: list[str] | None = None
) -> dict[str, Any]:
    return {
        **_bare(name, summary, headers, required=required),
        "contentType": JSON,
        "payload": {"$ref": f"./{name}.json"},
        "examples": [
            {"name": f"{name}_{variant}".rstrip("_"), "payload": msgspec.to_builtins(record)}
            for variant, record in EXAMPLES[name].items()
        ],
    }
