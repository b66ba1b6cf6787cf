"""Messages of a decision: payload by mode, headers, and ids that keep them single."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rule_samples import (
    LIMITS,
    TOPIC,
    URGENCY,
    asked,
    decided,
    message,
    rule,
    score_reply,
    shared_reply,
)

from actor.rules.event import Message
from actor.rules.plan import decide
from actor.rules.publication import Publication

CE_BINARY = {"ce-specversion": "1.0", "ce-id": "A234", "ce-source": "/src", "ce-type": "t"}
ENVELOPE = {"specversion": "1.0", "id": "A234", "source": "/src", "type": "t", "data": {"a": 1}}
CE_JSON = {"Content-Type": "application/cloudevents+json"}


def sink(mode: str, more: str = "") -> str:
    return f'[[rules.sinks]]\nsubject = "out"\nmode = "{mode}"\n{more}\n'


def published(mode: str, event: Message, *, more: str = "", keys: str = "") -> Publication:
    [made] = decided(rule(keys, sinks=sink(mode, more)), event).publications
    return made


def reply_as_json() -> Any:
    return msgspec.to_builtins(score_reply())


def test_annotate_leaves_the_event_as_it_is() -> None:
    """To the last byte, with its own headers; the decision stands beside it."""
    event = message(b' {"a" :1}\n', {"Content-Type": "application/json", "X-Tenant": "é"})

    made = published("annotate", event)

    assert made.payload == b' {"a" :1}\n'
    assert made.headers == {
        "Content-Type": "application/json",
        "X-Tenant": "é",
        "Semif-Rule": "r",
        "Semif-Event-Subject": "in.x",
        "Semif-Hops": "1",
        "Semif-Choice": "billing",
        "Semif-Probability": "0.750000",
        "Semif-Margin": "0.500000",
        "Semif-Sure": "true",
        "Semif-Proof": "abc",
    }


@pytest.mark.parametrize(
    "header",
    [
        "Nats-Msg-Id",
        "nats-msg-id",
        "Nats-Rollup",
        "Nats-TTL",
        "NATS-Expected-Last-Sequence",
        "Nats-Trace-Dest",
        "Semif-Choice",
        "semif-choice-topic",
        "SEMIF-SURE",
        "Semif-Timeout-Ms",
    ],
)
def test_headers_that_would_act_or_lie_are_not_passed_on(header: str) -> None:
    """What steers a stream, and what an earlier rule decided, is not the event's."""
    made = published("annotate", message(headers={header: "not ours"}))
    assert "not ours" not in made.headers.values()


@pytest.mark.parametrize("name", ["a(b", "a/b", "a\x01", "{x}"])
def test_a_header_that_cannot_be_sent_on_is_an_outcome(name: str) -> None:
    """nats-py reads such names and raises when it is to send one."""
    end = decide(asked(rule(), message(headers={name: "x"})), score_reply(), LIMITS)
    assert end.outcome.code == "bad_headers"


def test_decision_is_the_reply_in_json() -> None:
    """What a caller of ``score`` would get; of the event's headers only the trace goes on."""
    made = published("decision", message(headers={"traceparent": "00-1", "X-Tenant": "t"}))

    assert json.loads(made.payload) == reply_as_json() | {
        "probabilities": [0.75, 0.25],
        "option_ids": ["billing", "other"],
        "option_logits": [0.0, 0.0],
    }
    assert made.headers["Content-Type"] == "application/json"
    assert made.headers["traceparent"] == "00-1"
    assert "X-Tenant" not in made.headers


def test_wrap_is_both() -> None:
    """The event's JSON is not written anew: numbers and blanks stay as they were."""
    made = published("wrap", message(b'{"n": 1.10}'))

    assert b'"event":{"n": 1.10}' in made.payload
    wrapped = json.loads(made.payload)
    assert wrapped.keys() == {"rule", "subject", "event", "decision"}
    assert (wrapped["rule"], wrapped["subject"]) == ("r", "in.x")
    assert wrapped["decision"]["choice"] == "billing"


def test_wrap_of_a_text_holds_a_string() -> None:
    """Text is a JSON string there, whatever it looks like."""
    made = published("wrap", message(b'{"not": "read"}\n'), keys='format = "text"')
    assert json.loads(made.payload)["event"] == '{"not": "read"}\n'


@pytest.mark.parametrize("mode", ["decision", "wrap"])
def test_a_cloudevent_gets_a_cloudevent_in_binary_mode(mode: str) -> None:
    """With an id, a source and a type of its own."""
    made = published(mode, message(headers=CE_BINARY | {"ce-subject": "s"}))

    assert made.headers["ce-specversion"] == "1.0"
    assert made.headers["ce-type"] == "semif.decision.v1"
    assert made.headers["ce-source"] == "/semif/rules/r"
    assert made.headers["ce-id"] == "r.0./src%2520A234", "the id holds %20, encoded once more"
    assert made.headers["ce-subject"] == "s"
    body = json.loads(made.payload)
    assert (body["decision"] if mode == "wrap" else body)["choice"] == "billing"


@pytest.mark.parametrize("mode", ["decision", "wrap"])
def test_a_cloudevent_gets_a_cloudevent_in_structured_mode(mode: str) -> None:
    """The decision is the data of an envelope; ``wrap`` holds the event's whole envelope."""
    made = published(mode, message(json.dumps(ENVELOPE).encode(), CE_JSON))

    envelope = json.loads(made.payload)
    assert made.headers["Content-Type"].startswith("application/cloudevents+json")
    assert (envelope["type"], envelope["id"]) == ("semif.decision.v1", "r.0./src%20A234")
    data = envelope["data"]
    assert (data["decision"] if mode == "wrap" else data)["choice"] == "billing"
    if mode == "wrap":
        assert data["event"] == ENVELOPE


def test_an_annotated_cloudevent_stays_that_event() -> None:
    """Its attributes and its bytes are untouched."""
    made = published("annotate", message(headers=CE_BINARY))
    assert CE_BINARY.items() <= made.headers.items()


def test_several_answers_have_a_header_each() -> None:
    """The question's id tells them apart."""
    [made] = decided(rule(questions=TOPIC + URGENCY), message(), shared_reply()).publications

    assert made.headers["Semif-Choice-topic"] == "billing"
    assert made.headers["Semif-Choice-urgency"] == "later"
    assert made.headers["Semif-Probability-topic"] == "0.750000"
    assert made.headers["Semif-Margin-urgency"] == "0.500000"
    assert made.headers["Semif-Sure"] == "true"
    assert "Semif-Choice" not in made.headers


def test_values_are_ascii() -> None:
    """Option ids are anybody's text; headers are not."""
    questions = TOPIC.replace('id = "billing"', 'id = "über uns"')
    reply = msgspec.structs.replace(score_reply(), choice="über uns")
    [made] = decided(rule(questions=questions), message(), reply).publications
    assert made.headers["Semif-Choice"] == "%C3%BCber%20uns"


def test_a_stream_must_take_it_once() -> None:
    """The server refuses another stream, and drops what has the same id."""
    made = published("annotate", message(id="ORDERS.7"), more='stream = "OUT"')

    assert made.stream == "OUT"
    assert made.headers["Nats-Expected-Stream"] == "OUT"
    assert made.headers["Nats-Msg-Id"] == made.msg_id == "r.0.ORDERS.7"
    assert made.headers["Semif-Event-Id"] == "ORDERS.7"


def test_an_event_delivered_again_has_the_same_id_whatever_is_decided() -> None:
    """Else a second delivery with another choice would be a second publication."""
    made = rule(sinks='[[rules.sinks]]\nsubject = "out.{choice}"\nstream = "OUT"\n')
    ids = {
        decided(made, message(id="S.1"), score_reply(choice, 0.9)).publications[0].msg_id
        for choice in ("billing", "other")
    }
    assert len(ids) == 1


def test_each_sink_and_each_rule_has_ids_of_its_own() -> None:
    """One stream may take them all."""
    sinks = sink("annotate", 'stream = "OUT"') * 2
    ids = [
        made.msg_id
        for name in ("r", "s")
        for made in decided(rule(name=name, sinks=sinks), message(id="S.1")).publications
    ]
    assert len(set(ids)) == 4


def test_an_event_that_nobody_named_has_no_id() -> None:
    """Two equal events on a core subject are two events: their content names neither."""
    made = published("annotate", message(), more='stream = "OUT"')
    assert made.msg_id is None
    assert "Nats-Msg-Id" not in made.headers


def test_ids_are_bounded() -> None:
    """A publisher's id of any length becomes one of a hash, and different ones stay different."""
    first, second = (
        published("annotate", message(id="x" * 5000 + end), more='stream = "OUT"') for end in "ab"
    )
    assert first.msg_id != second.msg_id
    assert first.msg_id is not None
    assert len(first.msg_id) < 200
