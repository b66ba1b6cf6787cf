"""Header values, and decisions that are CloudEvents themselves."""

from __future__ import annotations

import json
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor.rules.cloudevents import CloudEvent, header_value, is_structured, write


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain-ASCII_~!'()*/?", "plain-ASCII_~!'()*/?"),
        ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
        ('100% "sure"', "100%25%20%22sure%22"),
        ("a\r\nb\0", "a%0D%0Ab%00"),
        ("", ""),
    ],
)
def test_values_are_encoded_as_the_binding_says(text: str, value: str) -> None:
    """Blanks, quotes, percent signs and what is not printable ASCII, and nothing else."""
    assert header_value(text) == value


@given(st.text())
def test_every_text_survives_a_header(text: str) -> None:
    """Printable ASCII goes over the wire, and decodes to the text that was sent."""
    value = header_value(text)

    assert all("!" <= mark <= "~" for mark in value)
    assert urllib.parse.unquote(value) == text


@pytest.mark.parametrize(
    ("content_type", "mode"),
    [
        ("application/cloudevents+json", True),
        (" Application/CloudEvents; charset=UTF-8", True),
        ("application/json", False),
        ("text/application/cloudevents", False),
        ("", False),
    ],
)
def test_the_media_type_tells_the_mode(content_type: str, mode: bool) -> None:
    """Whatever begins with the CloudEvents media type, in any case, is structured."""
    assert is_structured(content_type) is mode


def test_a_decision_in_binary_mode() -> None:
    """Attributes in headers, the decision as the payload."""
    cloud = CloudEvent(structured=False, id="A", source="/s", subject="é", traceparent="00-1")

    payload, headers = write(cloud, "sort", "sort.0.A", b'{"x":1}')

    assert payload == b'{"x":1}'
    assert headers == {
        "ce-specversion": "1.0",
        "ce-id": "sort.0.A",
        "ce-source": "/semif/rules/sort",
        "ce-type": "semif.decision.v1",
        "ce-datacontenttype": "application/json",
        "ce-subject": "%C3%A9",
        "ce-traceparent": "00-1",
        "Content-Type": "application/json",
    }


def test_a_decision_in_structured_mode() -> None:
    """One envelope in the JSON format, with no attribute that the event did not have."""
    cloud = CloudEvent(structured=True, id="A", source="/s")

    payload, headers = write(cloud, "sort", "sort.0.A", b'{"x":1}')

    assert headers == {"Content-Type": "application/cloudevents+json; charset=UTF-8"}
    assert json.loads(payload) == {
        "specversion": "1.0",
        "id": "sort.0.A",
        "source": "/semif/rules/sort",
        "type": "semif.decision.v1",
        "datacontenttype": "application/json",
        "data": {"x": 1},
    }
