"""The AsyncAPI 3.0.0 document: which message goes over which subject, and what comes back.

Payloads are references to the JSON Schema files next to the document, so nothing is said twice.
"""

from __future__ import annotations

from typing import Any

from schemas.asyncapi_messages import messages
from schemas.subjects import CONTENT_TYPE, JSON, MSGPACK, Subjects

__all__ = ["asyncapi"]

_SUBJECTS = Subjects()
_DESCRIPTION = f"""\
Decisions over NATS: given a state, a question and 2 to 16 options, how likely is each option.

Bodies are `{JSON}`, or `{MSGPACK}` when the request says so in `{CONTENT_TYPE}`; the reply comes in
the format of the request. Header names are read without regard to case. Subject prefix and queue
group are settings of the actor; the defaults stand here. Probabilities are conditional on the
options given, and uncalibrated."""


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
        "operations": _operations(),
        "components": {"messages": messages()},
    }


def _operations() -> dict[str, Any]:
    return {
        "score": _answers("score", "score_request", "score_reply", queue=True),
        "score_shared": _answers("score_shared", "shared_request", "shared_reply", queue=True),
        "status": _answers("status", "status_request", "heartbeat", queue=False),
        "health": _goes(
            "send", "health", "Publish a heartbeat at once, at every change and every interval."
        ),
        "jobs": _goes("receive", "jobs", "Each ends as one result, or as one dead letter."),
        "results": _goes("send", "results", "Store the answer of a job."),
        "events": _goes("receive", "events", "Ask the questions of a rule about each event."),
        "decisions": _goes("send", "decisions", "Publish what was decided, as the rule says."),
        "dead": _goes("send", "dead", "Keep what cannot be done, and why."),
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
            _SUBJECTS.health("{instance}"),
            "Heartbeats of one actor; `*` is all.",
            "heartbeat",
            instance="Name of the actor.",
        ),
        **_streams(),
        "events": _channel(None, "Where a rule reads: its file says.", "event"),
        "decisions": _channel(
            None, "Where a rule publishes: its file says.", "annotated", "decision", "wrapped"
        ),
    }


def _streams() -> dict[str, Any]:
    """Give the channels that are kept in streams."""
    rest = "One token or more, as the job has them"
    return {
        "jobs": _channel(
            _SUBJECTS.jobs("{rest}"),
            "Requests as jobs.",
            "score_request",
            "shared_request",
            rest="One token or more, of the sender's choice.",
        ),
        "results": _channel(
            _SUBJECTS.results("{rest}"),
            "Their answers.",
            "score_reply",
            "shared_reply",
            rest=f"{rest}.",
        ),
        "dead": _channel(
            _SUBJECTS.dead("{rest}"),
            "What cannot be done.",
            "dead_letter",
            rest=f"{rest}; of a rule's event `rules` and the rule's name.",
        ),
    }


def _channel(address: str | None, summary: str, *names: str, **parameters: str) -> dict[str, Any]:
    told = {name: {"description": text} for name, text in parameters.items()}
    return {
        "address": address,
        "summary": summary,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        **({"parameters": told} if told else {}),
    }


def _goes(action: str, channel: str, summary: str) -> dict[str, Any]:
    """Give an operation without a reply, for every message of its channel."""
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
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
