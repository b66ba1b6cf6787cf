"""One message of a decision: payload by mode, headers, and the id that makes it unique."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from actor.rules import cloudevents
from actor.rules.cloudevents import header_value
from actor.rules.event import Event
from actor.rules.outcomes import BAD_HEADERS, StopEvent
from actor.rules.rule import Rule
from schemas.codec import codec_for
from schemas.decision import ScoreReply, SharedReply, Wrapped
from schemas.subjects import (
    CHOICE_HEADER,
    CONTENT_TYPE,
    EVENT_ID_HEADER,
    EVENT_SUBJECT_HEADER,
    EXPECTED_STREAM_HEADER,
    HOPS_HEADER,
    JSON,
    MARGIN_HEADER,
    MSG_ID_HEADER,
    PROBABILITY_HEADER,
    PROOF_HEADER,
    RULE_HEADER,
    SURE_HEADER,
    TRACEPARENT_HEADER,
    TRACESTATE_HEADER,
)

__all__ = ["Answer", "Publication", "publication"]

_NOT_OURS_TO_PASS = ("nats-", "semif-")
"""Headers of an event that would act on the publication, or speak of an earlier decision."""
_TRACE = frozenset((TRACEPARENT_HEADER, TRACESTATE_HEADER))

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
"""Names that nats-py sends; it reads others too, and raises when it is given one of them."""

_encode = codec_for(None).encode


class Answer(msgspec.Struct, frozen=True):
    """The decision about one question."""

    question: str
    choice: str
    probability: float
    """Of the choice."""
    margin: float
    sure: bool
    route: str
    """What stands for the choice in subjects."""


class Publication(msgspec.Struct, frozen=True):
    """A message that is ready to go."""

    subject: str
    payload: bytes
    headers: dict[str, str]
    stream: str | None
    """The stream whose acknowledgement to wait for; None: a core subject."""
    msg_id: str | None
    """Also in the headers, for a stream. None: nothing tells the event from another like it."""


def publication(
    rule: Rule,
    place: int,
    *,
    subject: str,
    event: Event,
    answers: tuple[Answer, ...],
    reply: ScoreReply | SharedReply,
) -> Publication:
    """Give what the rule's sink number ``place`` publishes."""
    sink = rule.sinks[place]
    message = event.message
    msg_id = _msg_id(rule.name, place, event)
    if sink.mode == "annotate":
        payload = message.payload
        headers = _passed_on(message.headers)
    else:
        payload = _encode(reply) if sink.mode == "decision" else _wrap(rule, event, reply)
        headers = {name: text for name, text in message.headers.items() if name.lower() in _TRACE}
        if event.cloud is not None and msg_id is not None:
            payload, own = cloudevents.write(event.cloud, rule.name, msg_id, payload)
            headers |= own
        else:
            headers[CONTENT_TYPE] = JSON
    headers |= _decision_headers(rule, event, answers)
    headers[PROOF_HEADER] = header_value(reply.served_by.proof)
    if sink.stream is not None:
        headers[EXPECTED_STREAM_HEADER] = sink.stream
        if msg_id is not None:
            headers[MSG_ID_HEADER] = msg_id
    return Publication(subject, payload, headers, sink.stream, msg_id)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    passed = {
        name: text
        for name, text in headers.items()
        if not name.lower().startswith(_NOT_OURS_TO_PASS)
    }
    if not all(map(_HEADER_NAME.match, passed)):
        raise StopEvent(BAD_HEADERS, "event", "a header's name cannot be sent on")
    return passed


def _msg_id(rule: str, place: int, event: Event) -> str | None:
    """Name the publication by what it is about, not by what was decided.

    An event that is delivered again may be decided otherwise, in a batch of another shape; it must
    not be published twice for that.
    """
    return None if event.id is None else f"{rule}.{place}.{event.id}"


def _wrap(rule: Rule, event: Event, reply: ScoreReply | SharedReply) -> bytes:
    message = event.message
    structured = event.cloud is not None and event.cloud.structured
    whole = msgspec.Raw(message.payload) if structured or rule.form == "json" else event.value
    return _encode(Wrapped(rule=rule.name, subject=message.subject, event=whole, decision=reply))


def _decision_headers(rule: Rule, event: Event, answers: tuple[Answer, ...]) -> dict[str, str]:
    headers = {
        RULE_HEADER: rule.name,
        EVENT_SUBJECT_HEADER: header_value(event.message.subject),
        HOPS_HEADER: str(event.hops + 1),
    }
    if event.id is not None:
        headers[EVENT_ID_HEADER] = event.id
    for answer in answers:
        suffix = f"-{answer.question}" if len(answers) > 1 else ""
        headers[CHOICE_HEADER + suffix] = header_value(answer.choice)
        headers[PROBABILITY_HEADER + suffix] = f"{answer.probability:.6f}"
        headers[MARGIN_HEADER + suffix] = f"{answer.margin:.6f}"
        headers[SURE_HEADER + suffix] = _truth(answer.sure)
    headers[SURE_HEADER] = _truth(all(answer.sure for answer in answers))
    return headers


def _truth(value: bool) -> str:
    return "true" if value else "false"
