"""JSON Pointers, by the letter of RFC 6901."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor.rules.pointer import MISSING, PointerError, lookup, parse_pointer

RFC_DOCUMENT = json.loads(
    r"""{"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5,
         "k\"l": 6, " ": 7, "m~n": 8}"""
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", RFC_DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_the_examples_of_section_5(text: str, value: Any) -> None:
    """Each pointer of the RFC finds what the RFC says."""
    assert lookup(parse_pointer(text), RFC_DOCUMENT) == value


def test_escapes_are_read_in_the_order_of_section_4() -> None:
    """``~01`` is the name ``~1``, never ``/``."""
    assert lookup(parse_pointer("/~01"), {"~1": "right", "/": "wrong"}) == "right"


@pytest.mark.parametrize("text", ["a", "#/a", " /a", "/a~", "/a~2", "/~a", "/~~0"])
def test_what_is_no_pointer_is_refused(text: str) -> None:
    """A pointer begins with a slash, and ``~`` comes only before 0 and 1."""
    with pytest.raises(PointerError):
        parse_pointer(text)


@pytest.mark.parametrize(
    "text",
    [
        "/x",
        "/foo/2",
        "/foo/-",
        "/foo/-1",
        "/foo/00",
        "/foo/01",
        "/foo/+1",
        "/foo/1e0",
        "/foo/ 1",
        "/foo/²",
        "/foo/१",
        "/foo/" + "9" * 5000,
        "/foo/bar",
        "/a~1b/x",
        "/foo/0/x",
        "/foo/",
    ],
)
def test_what_is_not_there_is_missing(text: str) -> None:
    """Names that are not there, indexes past the end or badly written, parts of what has none."""
    assert lookup(parse_pointer(text), RFC_DOCUMENT) is MISSING


def test_null_is_a_value() -> None:
    """What is there and null is not missing."""
    assert lookup(parse_pointer("/a"), {"a": None}) is None


@given(st.lists(st.text()))
def test_every_name_can_be_pointed_at(names: list[str]) -> None:
    """Names escaped as the RFC says lead to what is nested under them, whatever they hold."""
    document: Any = "here"
    for name in reversed(names):
        document = {name: document}
    text = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)

    assert lookup(parse_pointer(text), document) == "here"
