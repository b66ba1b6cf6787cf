"""Which formats are served, and how a caller names them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import codec_for
from schemas.errors import UnsupportedMediaType

JSON = "application/json"
MSGPACK = "application/msgpack"


@pytest.mark.parametrize(
    ("content_type", "served"),
    [
        (None, JSON),
        ("", JSON),
        ("application/json", JSON),
        ("APPLICATION/JSON", JSON),
        (" application/json ", JSON),
        ("application/json; charset=utf-8", JSON),
        ('application/json;charset="UTF-8"', JSON),
        ("application/json; CHARSET = utf8; q=1", JSON),
        ("application/json; profile=x", JSON),
        ("application/msgpack", MSGPACK),
        ("Application/MsgPack", MSGPACK),
        ("application/x-msgpack", MSGPACK),
        ("application/vnd.msgpack; v=1", MSGPACK),
    ],
)
def test_content_types_served(content_type: str | None, served: str) -> None:
    """JSON is the default; case, space and parameters do not matter."""
    assert codec_for(content_type).media_type == served


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/xml",
        "application/jsonl",
        "json",
        "*/*",
        "application/json; charset=utf-16",
        "application/json; charset=ISO-8859-1",
        "application/json, application/msgpack",
    ],
)
def test_content_types_refused(content_type: str) -> None:
    """Anything else is 415, and so is JSON in another charset."""
    with pytest.raises(UnsupportedMediaType) as refused:
        codec_for(content_type)
    assert refused.value.field == "Content-Type"


@given(text=st.text())
def test_any_content_type_is_served_or_refused(text: str) -> None:
    """The header is the caller's, and never breaks the reader."""
    with contextlib.suppress(UnsupportedMediaType):
        assert codec_for(text).media_type in {JSON, MSGPACK}


def test_replies_are_written_in_the_format_asked() -> None:
    """The first byte tells: a brace in JSON, a map of one entry in MessagePack."""
    assert codec_for(JSON).encode({"a": 1}) == b'{"a":1}'
    assert codec_for(MSGPACK).encode({"a": 1}) == b"\x81\xa1a\x01"
