"""Values survive exactly: what ``json.loads`` reads is what the model is shown."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.codec import Codec, codec_for, decode_request
from schemas.decision import Decision, Option, ScoreRequest, SharedRequest
from schemas.errors import Malformed

JSON = codec_for("application/json")
MSGPACK = codec_for("application/msgpack")

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
json_values = st.recursive(
    scalars,
    lambda children: st.lists(children) | st.dictionaries(st.text(max_size=10), children),
    max_leaves=10,
)
states = st.text() | st.lists(json_values) | st.dictionaries(st.text(), json_values)
options = st.lists(st.builds(Option, id=st.text(), description=st.text()), max_size=4).map(tuple)
ids = st.none() | st.text()
decisions = st.builds(Decision, question=st.text(), options=options, id=ids)
score_requests = st.builds(ScoreRequest, state=states, question=st.text(), options=options, id=ids)
shared_requests = st.builds(
    SharedRequest, state=states, decisions=st.lists(decisions, max_size=3).map(tuple)
)


def read_state(state: str) -> Any:
    """Read a request whose state is the JSON text ``state``."""
    body = f'{{"state": {state}, "question": "q", "options": []}}'.encode()
    return decode_request(JSON, body, ScoreRequest, bytes_max=2**20, depth_max=64).state


def same(left: Any, right: Any) -> bool:
    """Compare as JSON does: 1, 1.0 and true are three values, and so are 0.0 and -0.0."""
    return repr(left) == repr(right)


@pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=["json", "msgpack"])
@given(request=score_requests)
def test_score_requests_round_trip(codec: Codec[Any], request: ScoreRequest) -> None:
    """What a Python client encodes is read back equal, types of numbers included."""
    data = codec.encode(request)
    back = decode_request(codec, data, ScoreRequest, bytes_max=2**24, depth_max=64)
    assert same(back, request)


@pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=["json", "msgpack"])
@given(request=shared_requests)
def test_shared_requests_round_trip(codec: Codec[Any], request: SharedRequest) -> None:
    """What a Python client encodes is read back equal, types of numbers included."""
    data = codec.encode(request)
    back = decode_request(codec, data, SharedRequest, bytes_max=2**24, depth_max=64)
    assert same(back, request)


@given(state=states, ascii_only=st.booleans())
def test_json_of_any_writer_is_read_as_json_loads_reads_it(state: Any, ascii_only: bool) -> None:
    """Escapes, spaces and all: the standard library writes, and agrees on what was read."""
    text = json.dumps(state, ensure_ascii=ascii_only, indent=1)
    assert same(read_state(text), json.loads(text))


@given(number=st.integers(-(10**400), 10**400))
@example(2**63)
@example(2**64)
@example(-(2**63) - 1)
@example(10**4299)
def test_integers_of_any_size_survive(number: int) -> None:
    """Beyond 64 bits an integer stays an integer, to the last digit."""
    assert read_state(f"[{number}]") == [number]


@given(
    text=st.from_regex(
        r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True
    )
)
@example("-0")
@example("-0.0")
@example("1e-400")
@example("5e-324")
@example("1.7976931348623157e308")
@example("0.1000000000000000055511151231257827021181583404541015625")
def test_numbers_are_what_json_loads_says(text: str) -> None:
    """To the last bit; what ``json.loads`` would make infinite is refused."""
    expected = json.loads(text)
    if isinstance(expected, float) and math.isinf(expected):
        with pytest.raises(Malformed, match="out of range"):
            read_state(f"[{text}]")
    else:
        assert same(read_state(f"[{text}]"), [expected])


@pytest.mark.parametrize(
    "text", ["1e400", "-1e400", "9" * 5000, "-" + "9" * 5000, "9" * 400 + ".5"]
)
def test_a_number_out_of_range_is_malformed_and_named(text: str) -> None:
    """A float beyond the largest double, an integer of more than 4,300 digits: 400."""
    with pytest.raises(Malformed, match="out of range") as refused:
        read_state(f"[{text}]")
    assert refused.value.field == "state[0]"
