"""The AsyncAPI 3.0.0 document: which message goes over which subject, and what comes back.

Payloads are references to the JSON Schema files next to the document, so nothing is said twice.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.errors import ERRORS
from schemas.examples import EXAMPLES
from schemas.subjects import (
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
    JSON,
    MSG_ID_HEADER,
    MSGPACK,
    PRIORITY_HEADER,
    TIMEOUT_HEADER,
    TRACEPARENT_HEADER,
    Subjects,
)

__all__ = ["asyncapi"]

_SUBJECTS = Subjects()
_DESCRIPTION = f"""\
Decisions over NATS: given a state, a question and 2 to 16 options, how likely is each option.

Bodies are `{JSON}`, or `{MSGPACK}` when the request says so in `{CONTENT_TYPE}`; the reply comes in
the format of the request. Header names are read without regard to case. Subject prefix and queue
group are settings of the actor; the defaults stand here. Probabilities are conditional on the
options given, and uncalibrated."""

_CONTENT_TYPE_HEADER = {
    "type": "string",
    "enum": [JSON, MSGPACK],
    "default": JSON,
    "description": "Format of the body. Replies in JSON go without this header.",
}
_REQUEST_HEADERS = {
    CONTENT_TYPE: _CONTENT_TYPE_HEADER,
    TIMEOUT_HEADER: {
        "type": "string",
        "pattern": "^[0-9]+$",
        "description": "Milliseconds the caller will wait, counted from receipt.",
    },
    PRIORITY_HEADER: {
        "type": "string",
        "enum": ["normal", "background"],
        "description": "`background`: score it when nothing else waits.",
    },
    MSG_ID_HEADER: {
        "type": "string",
        "description": "Default of `id` in the body of a `score` request.",
    },
    TRACEPARENT_HEADER: {
        "type": "string",
        "description": "W3C trace context of the caller.",
    },
}
_ERROR_HEADERS = {
    CONTENT_TYPE: _CONTENT_TYPE_HEADER,
    ERROR_TEXT_HEADER: {
        "type": "string",
        "examples": [error.summary for error in ERRORS],
        "description": "Fixed text of the error.",
    },
    ERROR_CODE_HEADER: {
        "type": "string",
        "examples": sorted({str(error.status) for error in ERRORS}),
        "description": "HTTP status of the same meaning. An answer has no such header.",
    },
}
_DEAD_HEADERS = {
    DEAD_CODE_HEADER: {"type": "string", "description": "The error's code, or `gave_up`."},
    DEAD_REASON_HEADER: {"type": "string", "description": "Why, for people."},
    DEAD_DELIVERIES_HEADER: {"type": "string", "description": "Times it was delivered."},
    DEAD_SUBJECT_HEADER: {"type": "string", "description": "Where it came from."},
    DEAD_STREAM_HEADER: {"type": "string", "description": "And its stream there."},
    DEAD_SEQUENCE_HEADER: {"type": "string", "description": "And its sequence in it."},
    DEAD_TRUNCATED_HEADER: {
        "type": "string",
        "description": "Bytes of the whole body, when there was no room for it.",
    },
}


def asyncapi() -> dict[str, Any]:
    """Give the document."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "semif-actor",
            "version": "1.0.0",
            "description": _DESCRIPTION,
            "license": {"name": "MIT"},
        },
        "defaultContentType": JSON,
        "channels": _channels(),
        "operations": {
            "score": _answers("score", "score_request", "score_reply", queue=True),
            "score_shared": _answers("score_shared", "shared_request", "shared_reply", queue=True),
            "status": _answers("status", "status_request", "heartbeat", queue=False),
            "health": {
                "action": "send",
                "channel": {"$ref": "#/channels/health"},
                "summary": "Publish a heartbeat at once, at every change and every interval.",
                "messages": [{"$ref": "#/channels/health/messages/heartbeat"}],
            },
            "jobs": {
                "action": "receive",
                "channel": {"$ref": "#/channels/jobs"},
                "summary": "Each ends as one result, or as one dead letter.",
            },
            "results": {"action": "send", "channel": {"$ref": "#/channels/results"}},
            "dead": {"action": "send", "channel": {"$ref": "#/channels/dead"}},
        },
        "components": {"messages": _messages()},
    }


def _streams() -> dict[str, Any]:
    """Give the channels that are kept in streams."""
    rest = {"parameters": {"rest": {"description": "One token or more, as the job has them."}}}
    jobs = _SUBJECTS.jobs("{rest}"), "Requests as jobs.", "score_request", "shared_request"
    results = _SUBJECTS.results("{rest}"), "Their answers.", "score_reply", "shared_reply"
    return {
        "jobs": _channel(*jobs) | rest,
        "results": _channel(*results) | rest,
        "dead": _channel(_SUBJECTS.dead("{rest}"), "What cannot be done.", "dead_letter") | rest,
    }


def _channels() -> dict[str, Any]:
    return {
        "score": _channel(_SUBJECTS.score, "One decision.", "score_request"),
        "score_reply": _channel(None, "The caller's inbox.", "score_reply", "error_reply"),
        "score_shared": _channel(
            _SUBJECTS.score_shared, "Several decisions over one state.", "shared_request"
        ),
        "score_shared_reply": _channel(None, "The caller's inbox.", "shared_reply", "error_reply"),
        "status": _channel(
            _SUBJECTS.status, "Asks every actor for its heartbeat.", "status_request"
        ),
        "status_reply": _channel(
            None, "The caller's inbox: one heartbeat from each actor.", "heartbeat"
        ),
        "health": _channel(
            _SUBJECTS.health("{instance}"), "Heartbeats of one actor; `*` is all.", "heartbeat"
        )
        | {"parameters": {"instance": {"description": "Name of the actor."}}},
        **_streams(),
    }


def _channel(address: str | None, summary: str, *messages: str) -> dict[str, Any]:
    return {
        "address": address,
        "summary": summary,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
    }


def _answers(channel: str, request: str, reply: str, *, queue: bool) -> dict[str, Any]:
    replies = [reply, "error_reply"] if queue else [reply]
    group = {"bindings": {"nats": {"queue": "semif", "bindingVersion": "0.1.0"}}} if queue else {}
    summary = "One actor of the queue group answers." if queue else "Every actor answers."
    return {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "messages": [{"$ref": f"#/channels/{channel}/messages/{request}"}],
        **group,
        "reply": {
            "channel": {"$ref": f"#/channels/{channel}_reply"},
            "messages": [
                {"$ref": f"#/channels/{channel}_reply/messages/{name}"} for name in replies
            ],
        },
    }


def _messages() -> dict[str, Any]:
    reply_headers = {CONTENT_TYPE: _CONTENT_TYPE_HEADER}
    return {
        "score_request": _message("score_request", "A decision asked.", _REQUEST_HEADERS),
        "score_reply": _message("score_reply", "Its answer.", reply_headers),
        "shared_request": _message("shared_request", "Several asked.", _REQUEST_HEADERS),
        "shared_reply": _message(
            "shared_reply", "An answer or an error for each decision.", reply_headers
        ),
        "error_reply": _message(
            "error_reply",
            "Why a request has no answer.",
            _ERROR_HEADERS,
            required=[ERROR_TEXT_HEADER, ERROR_CODE_HEADER],
        ),
        "status_request": {
            "name": "status_request",
            "summary": "Any body; it is not read.",
        },
        "heartbeat": _message("heartbeat", "What an actor says of itself, in JSON.", {}),
        "dead_letter": {
            "name": "dead_letter",
            "summary": "A job or an event as it was, with its own headers.",
            "headers": {"type": "object", "properties": _DEAD_HEADERS},
        },
    }


def _message(
    name: str, summary: str, headers: dict[str, Any], *, required: list[str] | None = None
) -> dict[str, Any]:
    header_schema = {"type": "object", "properties": headers}
    if required:
        header_schema["required"] = required
    return {
        "name": name,
        "summary": summary,
        "contentType": JSON,
        **({"headers": header_schema} if headers else {}),
        "payload": {"$ref": f"./{name}.json"},
        "examples": [
            {"name": f"{name}_{variant}".rstrip("_"), "payload": msgspec.to_builtins(record)}
            for variant, record in EXAMPLES[name].items()
        ],
    }
