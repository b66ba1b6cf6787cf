"""From a message to an event: what can be read, and the outcome of everything else."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_samples import message

from actor.rules.event import Event, Format, Message, read_event
from actor.rules.outcomes import StopEvent

CE_BINARY = {"ce-specversion": "1.0", "ce-id": "A234", "ce-source": "/src", "ce-type": "t"}
ENVELOPE: dict[str, Any] = {"specversion": "1.0", "id": "A234", "source": "/src", "type": "t"}
CE_JSON = {"Content-Type": "application/cloudevents+json; charset=UTF-8"}


def read(sent: Message, form: Format = "json") -> Event:
    return read_event(sent, form, bytes_max=1000, hops_max=3)


def outcome(sent: Message, form: Format = "json") -> str:
    with pytest.raises(StopEvent) as caught:
        read(sent, form)
    return caught.value.outcome.code


def structured(**fields: Any) -> Message:
    return message(json.dumps(ENVELOPE | fields).encode(), CE_JSON)


@pytest.mark.parametrize(
    ("payload", "value"),
    [(b'{"a": [1]}', {"a": [1]}), (b' "x"\n', "x"), (b"7", 7), (b"null", None), (b"[]", [])],
)
def test_json_is_read_whatever_its_type(payload: bytes, value: Any) -> None:
    """Whether the value can be a state is the rule's to say: it may pick a part of it."""
    assert read(message(payload)).value == value


def test_text_is_read_as_it_is() -> None:
    """Text keeps its blanks, and JSON in it is text."""
    assert read(message(' {"a"\n é '.encode()), "text").value == ' {"a"\n é '


@pytest.mark.parametrize(
    ("payload", "form", "code"),
    [
        (b"", "json", "empty"),
        (b"", "text", "empty"),
        (b" \r\n\t", "json", "empty"),
        (b" \r\n\t", "text", "empty"),
        (b"\xff\xfe\x00", "json", "binary"),
        (b'{"a": "\xff"}', "json", "binary"),
        (b"\x89PNG", "text", "binary"),
        (b"{", "json", "not_json"),
        (b"{'a': 1}", "json", "not_json"),
        (b"hello", "json", "not_json"),
        (b'{"a": NaN}', "json", "not_json"),
        (b'{"a": 1e999}', "json", "not_json"),
        (b'{"a": "\\ud800"}', "json", "not_json"),
        (b'\xef\xbb\xbf{"a": 1}', "json", "not_json"),
        (b'"' + b"x" * 999 + b'"', "json", "too_large"),
        (b"x" * 1001, "text", "too_large"),
    ],
)
def test_each_bad_payload_has_its_outcome(payload: bytes, form: Format, code: str) -> None:
    """Empty, not UTF-8, not JSON, too large: four names, and no other end."""
    assert outcome(message(payload), form) == code


def test_the_limit_itself_is_not_over_the_limit() -> None:
    """A thousand bytes are read where a thousand are the limit."""
    assert read(message(b"x" * 1000), "text").value == "x" * 1000


def test_nesting_without_end_is_an_outcome() -> None:
    """A hundred thousand brackets end at the reader's own guard."""
    with pytest.raises(StopEvent) as caught:
        read_event(message(b"[" * 100_000), "json", bytes_max=200_000, hops_max=3)
    assert caught.value.outcome.code == "too_deep"


@pytest.mark.parametrize("name", ["ce-{}", "CE-{}", "Ce-{}"])
def test_cloudevents_in_binary_mode(name: str) -> None:
    """Attributes are headers of any case, percent-encoded as the HTTP binding's example has it."""
    text = "Euro%20%E2%82%AC%20%F0%9F%98%80"
    attributes = {"specversion": "1.0", "id": "A234", "source": "/src", "type": "t"}
    headers = {name.format(key): value for key, value in attributes.items()}

    event = read(message(b'{"a": 1}', headers | {"ce-subject": text}))

    assert event.cloud is not None
    assert not event.cloud.structured
    assert event.cloud.subject == "Euro € 😀"
    assert event.value == {"a": 1}
    assert event.id == "/src%20A234"


@pytest.mark.parametrize(
    ("fields", "form", "value"),
    [
        ({"data": {"a": 1}}, "json", {"a": 1}),
        ({"data": "text"}, "json", "text"),
        ({"data": "text", "datacontenttype": "text/plain"}, "text", "text"),
        ({"data_base64": base64.b64encode(b'{"a": 1}').decode()}, "json", {"a": 1}),
        ({"data_base64": base64.b64encode("é".encode()).decode()}, "text", "é"),
        ({"data": 1, "subject": None, "comexampleextension": 5}, "json", 1),
    ],
)
def test_cloudevents_in_structured_mode(fields: Any, form: Format, value: Any) -> None:
    """The data are JSON in the envelope, or bytes in base64."""
    event = read(structured(**fields), form)

    assert event.value == value
    assert event.cloud is not None
    assert event.cloud.structured


@pytest.mark.parametrize(
    ("fields", "form", "code"),
    [
        ({}, "json", "empty"),
        ({"data": None}, "json", "empty"),
        ({"data": ""}, "text", "empty"),
        ({"data_base64": ""}, "json", "empty"),
        ({"data": {"a": 1}}, "text", "bad_state"),
        ({"data_base64": "////"}, "json", "binary"),
        ({"data_base64": "////"}, "text", "binary"),
        ({"data_base64": "aGk="}, "json", "not_json"),
        ({"data_base64": "no base64"}, "json", "bad_cloudevent"),
        ({"data_base64": "é"}, "json", "bad_cloudevent"),
        ({"data_base64": "aGk=", "data": 1}, "json", "bad_cloudevent"),
        ({"data": 1, "specversion": "0.3"}, "json", "bad_cloudevent"),
        ({"data": 1, "id": ""}, "json", "bad_cloudevent"),
        ({"data": 1, "id": 5}, "json", "bad_cloudevent"),
        ({"data": 1, "type": None}, "json", "bad_cloudevent"),
    ],
)
def test_each_bad_envelope_has_its_outcome(fields: Any, form: Format, code: str) -> None:
    """A fault of the envelope is told from one of the data in it."""
    assert outcome(structured(**fields), form) == code


@pytest.mark.parametrize(
    ("payload", "content_type", "code"),
    [
        (b"", "application/cloudevents+json", "empty"),
        (b"{", "application/cloudevents+json", "not_json"),
        (b"\xff", "application/cloudevents+json", "binary"),
        (b"[]", "application/cloudevents+json", "bad_cloudevent"),
        (b'{"id": "1"}', "APPLICATION/CloudEvents+JSON", "bad_cloudevent"),
        (b"{}", "application/cloudevents+avro", "bad_cloudevent"),
        (b"[]", "application/cloudevents-batch+json", "bad_cloudevent"),
    ],
)
def test_what_claims_to_be_an_envelope_is_held_to_it(
    payload: bytes, content_type: str, code: str
) -> None:
    """The media type decides the mode, by the binding's own rule; other formats are not read."""
    assert outcome(message(payload, {"content-type": content_type})) == code


@pytest.mark.parametrize(
    "change",
    [
        {"ce-id": ""},
        {"ce-source": ""},
        {"ce-type": ""},
        {"ce-specversion": "2.0"},
        {"ce-id": "%FF"},
    ],
)
def test_headers_of_a_bad_cloudevent(change: dict[str, str]) -> None:
    """The four attributes are required, and percent-encoding gives UTF-8."""
    assert outcome(message(headers=CE_BINARY | change)) == "bad_cloudevent"


def test_a_missing_attribute_is_a_bad_cloudevent() -> None:
    """``ce-specversion`` alone makes an event a CloudEvent, and a bad one."""
    assert outcome(message(headers={"ce-specversion": "1.0"})) == "bad_cloudevent"


@pytest.mark.parametrize(
    ("headers", "bus", "known_as"),
    [
        ({}, None, None),
        ({"nats-msg-id": "m 1"}, None, "m%201"),
        ({"Nats-Msg-Id": "m"}, "S.7", "S.7"),
        (CE_BINARY, None, "/src%20A234"),
        (CE_BINARY | {"Nats-Msg-Id": "m"}, None, "m"),
    ],
)
def test_who_an_event_is(headers: dict[str, str], bus: str | None, known_as: str | None) -> None:
    """The stream's own count, else the publisher's message id, else the CloudEvent's."""
    assert read(message(headers=headers, id=bus)).id == known_as


@pytest.mark.parametrize(("hops", "is_read"), [("0", True), ("2", True), ("3", False)])
def test_an_event_goes_through_so_many_rules(hops: str, is_read: bool) -> None:
    """Three rules at most, where three is the limit."""
    sent = message(headers={"semif-hops": hops})
    if is_read:
        assert read(sent).hops == int(hops)
    else:
        assert outcome(sent) == "loop"


@pytest.mark.parametrize("hops", ["", "-1", "x", "1.0", "²", "१", "9" * 5000, "+1", " 1"])
def test_a_count_that_is_none_is_a_loop(hops: str) -> None:
    """Nothing that a header can say starts the count again."""
    assert outcome(message(headers={"Semif-Hops": hops})) == "loop"


@given(
    st.binary(max_size=60) | st.text(max_size=30).map(str.encode),
    st.dictionaries(
        st.sampled_from(["Content-Type", "ce-specversion", "ce-id", "Semif-Hops", "Nats-Msg-Id"]),
        st.sampled_from(["1.0", "application/cloudevents+json", "1"]) | st.text(max_size=5),
    ),
    st.sampled_from(["json", "text"]),
)
def test_whatever_comes_is_read_or_has_an_outcome(
    payload: bytes, headers: dict[str, str], form: Format
) -> None:
    """Nothing else leaves the reader."""
    end: Event | str
    try:
        end = read(message(payload, headers), form)
    except StopEvent as stop:
        end = stop.outcome.action
    assert end == "dead" or (isinstance(end, Event) and (end.id or "").isascii())
