"""Requests made from options and files, and answers printed as they are."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor.cli.client import build_request, print_answer, print_error
from actor.cli.show import console
from schemas.codec import codec_for
from schemas.decision import ScoreReply, SharedReply
from schemas.errors import ErrorBody
from schemas.examples import EXAMPLES

MARKUP = "[/bold][red]x[/]"
"""What rich would obey, or choke on, if it were taken for markup."""


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Give what the console prints, wide enough for any line."""
    file = io.StringIO()
    monkeypatch.setattr(console, "_file", file)
    monkeypatch.setattr(console, "_width", 500)
    return iter([file])


def built(**changes: Any) -> Any:
    """Give the request that options make, decoded by the standard library."""
    asked = {"state": "late", "question": "q", "options": ["a=A", "b=B"]} | changes
    return json.loads(build_request(None, **asked))


def test_options_become_a_request() -> None:
    """Only the first = parts an id from its description, which may be empty: the actor decides."""
    assert built(options=["a=A=1", "b="]) == {
        "state": "late",
        "question": "q",
        "options": [{"id": "a", "description": "A=1"}, {"id": "b", "description": ""}],
    }


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('{"a": [1]}', {"a": [1]}),
        (' [1, "x"]', [1, "x"]),
        ("{not json", "{not json"),
        ("[1", "[1"),
        ("1", "1"),
        ('"quoted"', '"quoted"'),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=["object", "array", "brace", "bracket", "number", "string", "empty", "too deep"],
)
def test_a_state_is_json_when_it_can_be_and_else_text(text: str, state: Any) -> None:
    """An object or an array is taken as such, everything else as the text it is."""
    assert built(state=text)["state"] == state


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_a_state(text: str) -> None:
    """Nothing a person types ends in a traceback; what is no JSON arrives letter for letter."""
    state = built(state=text)["state"]

    assert state == text if isinstance(state, str) else text.lstrip()[0] in "{["


@pytest.mark.parametrize(
    "changes",
    [
        {"state": None},
        {"question": None},
        {"options": []},
        {"options": ["a"]},
        {"options": ["=A"]},
        {"state": "\udcff"},
    ],
    ids=["no state", "no question", "no options", "no =", "no id", "not UTF-8"],
)
def test_what_makes_no_request_is_a_value_error(changes: dict[str, Any]) -> None:
    """The command turns it into one line and exit code 2."""
    with pytest.raises(ValueError, match=r"."):
        built(**changes)


def test_a_file_is_sent_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte, valid or not, and ``-`` is standard input; never beside options."""
    body = b'{"state": \xff'
    file = tmp_path / "request"
    file.write_bytes(body)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))

    assert build_request(file, None, None, []) == body
    assert build_request(Path("-"), None, None, []) == body
    with pytest.raises(ValueError, match="not both"):
        build_request(file, "late", None, [])


@pytest.mark.parametrize("shared", [False, True], ids=["score", "score_shared"])
def test_names_in_an_answer_are_printed_and_not_obeyed(
    printed: Iterator[io.StringIO], *, shared: bool
) -> None:
    """Ids and options are the caller's: brackets in them are text."""
    name = "shared_reply" if shared else "score_reply"
    reply = json.loads(codec_for(None).encode(EXAMPLES[name][""]))
    for result in reply["results"] if shared else [reply]:
        result["id"] = MARKUP
        if "option_ids" in result:
            result["option_ids"][0] = result["choice"] = MARKUP

    record = SharedReply if shared else ScoreReply
    print_answer(codec_for(None).decode(json.dumps(reply).encode(), record))

    text = next(printed).getvalue()
    assert f"{MARKUP}: {MARKUP}, margin" in text
    assert "uncalibrated" in text


def test_an_error_is_printed_and_not_obeyed(printed: Iterator[io.StringIO]) -> None:
    """The field at fault may be a name that the caller made up."""
    error = ErrorBody(code="invalid", status=422, message="A.", retryable=False, field=MARKUP)

    print_error(error)

    assert next(printed).getvalue() == f"422 invalid: A. ({MARKUP})\n"
