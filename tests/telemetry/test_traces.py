"""A traceback that tells types and places, and no text."""

from __future__ import annotations

import json

from actor.telemetry.traces import trace_of


def caught(text: str) -> Exception:
    """Give an error of an error, both with a text, out of two functions."""

    def inner() -> None:
        local = json.loads(text)
        raise AssertionError(local)

    try:
        try:
            inner()
        except ValueError as error:
            raise KeyError(text) from error
    except Exception as error:  # noqa: BLE001 - any
        return error
    raise AssertionError


def test_types_and_places_are_there() -> None:
    """Module, line and function, the innermost last; then what came before."""
    lines = trace_of(caught("marker")).splitlines()

    assert lines[0] == "KeyError"
    assert lines[1].endswith(" caught")
    assert lines[2] == "after JSONDecodeError"
    assert lines[4].endswith(" inner")
    assert lines[5].startswith("  json:")
    assert lines[-1].startswith("  json.decoder:")
    assert lines[-1].endswith(" raw_decode")


def test_no_text_and_no_path_is_there() -> None:
    """Neither what the errors say, nor a variable, nor a folder."""
    found = trace_of(caught("marker"))

    assert "marker" not in found
    assert "local" not in found
    assert "/" not in found


def test_a_long_recursion_and_a_long_chain_stay_short() -> None:
    """The innermost places count."""

    def recurse() -> None:
        recurse()

    error: BaseException | None = None
    try:
        recurse()
    except RecursionError as deep:
        error = deep
    assert error is not None
    for _ in range(30):
        outer = ValueError()
        outer.__cause__ = error
        error = outer

    assert len(trace_of(error).splitlines()) <= 8
    assert error.__cause__ is not None
    while error.__cause__ is not None:
        error = error.__cause__
    assert len(trace_of(error).splitlines()) == 41


def test_an_error_that_was_never_raised_has_a_type() -> None:
    """And a context that was hidden on purpose stays hidden."""
    hidden = ValueError("a")
    hidden.__context__ = KeyError("b")
    hidden.__suppress_context__ = True

    assert trace_of(hidden) == "ValueError"
