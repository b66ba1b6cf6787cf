"""Reading what untrusted callers send: each way a body can be bad, in JSON and in MessagePack."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import Codec, codec_for, decode_request
from schemas.decision import ScoreRequest, SharedRequest
from schemas.errors import Invalid, Malformed, TooLarge

JSON = codec_for("application/json")
MSGPACK = codec_for("application/msgpack")
DEPTH_MAX = 64
REST: dict[str, Any] = {
    "question": "Which?",
    "options": [{"id": "a", "description": "One"}, {"id": "b", "description": "Two"}],
}
REST_JSON = json.dumps(REST).encode()[1:-1]
REST_MSGPACK = msgspec.msgpack.encode(REST)[1:]


def read(
    data: bytes, codec: Codec[Any] = JSON, *, depth_max: int = DEPTH_MAX, bytes_max: int = 2**20
) -> ScoreRequest:
    return decode_request(codec, data, ScoreRequest, bytes_max=bytes_max, depth_max=depth_max)


def read_shared(data: bytes) -> SharedRequest:
    return decode_request(JSON, data, SharedRequest, bytes_max=2**20, depth_max=DEPTH_MAX)


def json_body(state: bytes) -> bytes:
    return b'{"state":' + state + b"," + REST_JSON + b"}"


def msgpack_body(state: bytes) -> bytes:
    """Build the body by hand: a map of three, whose first value is ``state``."""
    return b"\x83\xa5state" + state + REST_MSGPACK


def test_a_request_is_read_as_it_was_written() -> None:
    """Both formats give the same record, in the order of the options sent."""
    from_json = read(json_body(b'{"a": [1, 2.5, null, true, "x"]}'))
    from_msgpack = read(
        msgspec.msgpack.encode({"state": {"a": [1, 2.5, None, True, "x"]}, **REST}), MSGPACK
    )
    assert from_json == from_msgpack
    assert from_json.state == {"a": [1, 2.5, None, True, "x"]}
    assert [option.id for option in from_json.options] == ["a", "b"]
    assert from_json.id is None


NOT_JSON = {
    "empty": b"",
    "blank": b" \n",
    "truncated": json_body(b'"s"')[:-1],
    "NaN": json_body(b"[NaN]"),
    "Infinity": json_body(b"[Infinity]"),
    "-Infinity": json_body(b"[-Infinity]"),
    "leading zero": json_body(b"[01]"),
    "plus sign": json_body(b"[+1]"),
    "bare fraction": json_body(b"[.5]"),
    "trailing comma": json_body(b"[1,]"),
    "comment": json_body(b'"s" /* c */'),
    "single quotes": json_body(b"'s'"),
    "raw control character": json_body(b'"\x01"'),
    "lone high surrogate": json_body(b'"\\ud800"'),
    "lone low surrogate": json_body(b'"\\udc00"'),
    "two high surrogates": json_body(b'"\\ud800\\ud800"'),
    "lone surrogate in a key": json_body(b'{"\\ud800": 1}'),
    "surrogate in UTF-8": json_body(b'"\xed\xa0\x80"'),
    "not UTF-8": json_body(b'"\xff"'),
    "overlong UTF-8": json_body(b'"\xc0\xaf"'),
    "beyond Unicode": json_body(b'"\xf4\x90\x80\x80"'),
    "byte order mark": b"\xef\xbb\xbf" + json_body(b'"s"'),
    "UTF-16 with a mark": json_body(b'"s"').decode().encode("utf-16"),
    "UTF-16": json_body(b'"s"').decode().encode("utf-16-le"),
    "UTF-32": json_body(b'"s"').decode().encode("utf-32-be"),
    "trailing text": json_body(b'"s"') + b"x",
    "trailing NUL": json_body(b'"s"') + b"\0",
    "two bodies": json_body(b'"s"') * 2,
    "100,000 brackets": json_body(b"[" * 100_000),
    "100,000 braces": json_body(b'{"a":' * 100_000),
    "MessagePack": msgpack_body(b"\xa1s"),
}


@pytest.mark.parametrize("data", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_not_json_is_malformed(data: bytes) -> None:
    """Bytes that are not one JSON document in UTF-8 are refused with 400."""
    with pytest.raises(Malformed):
        read(data)


NOT_MSGPACK = {
    "empty": b"",
    "truncated": msgpack_body(b"\xa1s")[:-1],
    "trailing byte": msgpack_body(b"\xa1s") + b"\xc0",
    "two bodies": msgpack_body(b"\xa1s") * 2,
    "reserved byte": msgpack_body(b"\xc1"),
    "array of 4 billion": msgpack_body(b"\xdd\xff\xff\xff\xff"),
    "map of 4 billion": msgpack_body(b"\xdf\xff\xff\xff\xff"),
    "string of 4 GB": msgpack_body(b"\xdb\xff\xff\xff\xff"),
    "100,000 arrays": msgpack_body(b"\x91" * 100_000),
    "100,000 maps": msgpack_body(b"\x81\xa1a" * 100_000),
    "not UTF-8": msgpack_body(b"\xa1\xff"),
    "surrogate": msgpack_body(b"\x91\xa3\xed\xa0\x80"),
    "key not UTF-8": msgpack_body(b"\x81\xa1\xff\x01"),
    "NaN, 64 bit": msgpack_body(b"\x91\xcb\x7f\xf8\0\0\0\0\0\0"),
    "NaN, 32 bit": msgpack_body(b"\x91\xca\x7f\xc0\0\0"),
    "infinity": msgpack_body(b"\x91\xcb\x7f\xf0\0\0\0\0\0\0"),
    "bytes": msgpack_body(b"\x91\xc4\x01x"),
    "extension": msgpack_body(b"\x91\xd4\x05x"),
    "timestamp": msgpack_body(msgspec.msgpack.encode([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)])),
    "timestamp out of range": msgpack_body(b"\x91\xc7\x0c\xff" + b"\xff" * 12),
    "integer key": msgpack_body(b"\x81\x01\x01"),
    "integer key, nested": msgpack_body(b"\x91\x81\x01\x01"),
    "nil key, nested": msgpack_body(b"\x91\x81\xc0\x01"),
    "bytes key, nested": msgpack_body(b"\x91\x81\xc4\x01x\x01"),
    "array key, nested": msgpack_body(b"\x91\x81\x91\x01\x01"),
    "unhashable key, nested": msgpack_body(b"\x91\x81\x91\x80\x01"),
    "extension key, nested": msgpack_body(b"\x91\x81\xd4\x05x\x01"),
    "integer key of the request": b"\x81\x01\x01",
}


@pytest.mark.parametrize("data", NOT_MSGPACK.values(), ids=NOT_MSGPACK.keys())
def test_what_json_could_not_carry_is_malformed(data: bytes) -> None:
    """Bytes that are not MessagePack, or that hold what JSON does not have, get 400."""
    with pytest.raises(Malformed):
        read(data, MSGPACK)


@pytest.mark.parametrize(
    ("codec", "bracket"), [(JSON, b"["), (MSGPACK, b"\x91")], ids=["json", "msgpack"]
)
def test_100_000_brackets_are_refused_at_the_first(codec: Codec[Any], bracket: bytes) -> None:
    """A body that opens as an array is no request, however deep it goes on."""
    with pytest.raises(Invalid):
        read(bracket * 100_000, codec)


VALID = (json_body(b'{"a": [1, 2.5, "\\u00e9"]}'), msgpack_body(b"\x81\xa1a\x92\x01\xca\x40\0\0\0"))


@st.composite
def damaged_bodies(draw: st.DrawFn) -> bytes:
    """Draw a valid body with a piece replaced by other bytes."""
    body = draw(st.sampled_from(VALID))
    start = draw(st.integers(0, len(body)))
    length = draw(st.integers(0, 4))
    return body[:start] + draw(st.binary(max_size=4)) + body[start + length :]


@given(data=st.binary(max_size=200) | damaged_bodies(), codec=st.sampled_from([JSON, MSGPACK]))
def test_wild_bytes_are_read_or_refused_in_our_words(data: bytes, codec: Codec[Any]) -> None:
    """Whatever comes, nothing but our own errors comes out, and no body of a bad kind comes in."""
    try:
        request = read(data, codec)
    except (Malformed, Invalid):
        return
    json.dumps(request.state, allow_nan=False).encode()  # JSON can carry all that was let in
    if codec is JSON:
        assert json.loads(data.decode())["state"] == request.state


def nest(levels: int, codec: Codec[Any], *, objects: bool) -> bytes:
    value: Any = {} if objects else []
    for _ in range(levels - 1):
        value = {"k": value} if objects else [value]
    return codec.encode({"state": value, **REST})


@pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=["json", "msgpack"])
@pytest.mark.parametrize("objects", [True, False], ids=["objects", "arrays"])
@pytest.mark.parametrize("limit", [1, 2, 64, 200])
def test_depth_is_bounded_exactly(codec: Codec[Any], objects: bool, limit: int) -> None:
    """As many levels as the limit are read; one more is refused, though it be empty."""
    read(nest(limit, codec, objects=objects), codec, depth_max=limit)
    with pytest.raises(Malformed, match=f"deeper than {limit} levels") as refused:
        read(nest(limit + 1, codec, objects=objects), codec, depth_max=limit)
    assert refused.value.field == "state"


def test_size_is_bounded_exactly() -> None:
    """A body of as many bytes as the limit is read; one more is 413, and says both numbers."""
    data = json_body(b'"s"')
    read(data, bytes_max=len(data))
    with pytest.raises(TooLarge, match=f"{len(data)} bytes, the limit is {len(data) - 1}"):
        read(data, bytes_max=len(data) - 1)


@pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=["json", "msgpack"])
def test_of_a_repeated_key_the_last_wins(codec: Codec[Any]) -> None:
    """Within the state and in the request itself, as ``json.loads`` has it."""
    inner = (b'{"a": 1, "a": 2}', b"\x82\xa1a\x01\xa1a\x02")
    body = (json_body, msgpack_body)[codec is MSGPACK]
    assert read(body(inner[codec is MSGPACK]), codec).state == {"a": 2}
    twice = b'{"state":"x","state":"y",' + REST_JSON + b"}"
    assert read(twice).state == json.loads(twice)["state"] == "y"


WRONG_FIELDS: dict[str, tuple[dict[str, Any], str | None]] = {
    "state missing": (REST, "state"),
    "question missing": ({"state": "s", "options": []}, "question"),
    "options missing": ({"state": "s", "question": "q"}, "options"),
    "nested missing": (
        {"options": [{"id": "a", "description": "d"}, {"id": "b"}]},
        "options[1].description",
    ),
    "unknown": ({"stat": "s"}, "stat"),
    "nested unknown": ({"options": [{"id": "a", "text": "d"}]}, "options[0].text"),
    "state a number": ({"state": 5}, "state"),
    "state null": ({"state": None}, "state"),
    "state a boolean": ({"state": True}, "state"),
    "question a number": ({"question": 5}, "question"),
    "options an object": ({"options": {}}, "options"),
    "option a string": ({"options": ["a"]}, "options[0]"),
    "description null": ({"options": [{"id": "a", "description": None}]}, "options[0].description"),
    "id a number": ({"id": 5}, "id"),
    "unknown, named like an error": ({"out of range": 1}, "out of range"),
    "unknown, named missing": ({"missing": 1}, "missing"),
    "unknown, with a backtick": ({"a`b": 1}, "a`b"),
    "unknown, empty": ({"": 1}, ""),
    "unknown, of 1,000 characters": ({"k" * 1000: 1}, "k" * 64),
}


@pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=["json", "msgpack"])
@pytest.mark.parametrize(("body", "field"), WRONG_FIELDS.values(), ids=WRONG_FIELDS.keys())
def test_a_wrong_field_is_named_by_its_path(
    codec: Codec[Any], body: dict[str, Any], field: str
) -> None:
    """Missing, unknown and of the wrong type: 422, and the caller learns which."""
    with pytest.raises(Invalid) as refused:
        read(codec.encode(body), codec)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"missing": 1}, "A field is not known."),
        (REST, "A field is missing."),
        ({"state": 5}, "A field has the wrong type."),
    ],
)
def test_a_wrong_field_is_told_in_fixed_words(body: dict[str, Any], said: str) -> None:
    """The sentence says what is wrong, in words of ours and none of the library's."""
    with pytest.raises(Invalid) as refused:
        read(JSON.encode(body))
    assert str(refused.value) == said


def test_a_wrong_field_of_one_decision_is_named_by_its_path() -> None:
    """The path counts decisions and options from zero."""
    body = {"state": "s", "decisions": [REST, {"question": "q", "options": [{"id": "a"}]}]}
    with pytest.raises(Invalid) as refused:
        read_shared(JSON.encode(body))
    assert refused.value.field == "decisions[1].options[0].description"


@pytest.mark.parametrize("data", [b"[]", b"null", b'"s"', b"5", b"true"])
def test_a_body_that_is_no_object_is_invalid(data: bytes) -> None:
    """JSON it is, a request it is not: 422."""
    with pytest.raises(Invalid):
        read(data)
