"""The error table of the contract, and what an error tells its caller."""

from __future__ import annotations

import pytest

from schemas.errors import (
    ERRORS,
    ControlText,
    DeadlineExceeded,
    Draining,
    ErrorBody,
    Invalid,
    Malformed,
    OutOfMemory,
    Overloaded,
    ScoringFailed,
    SemifError,
    TooLarge,
    UnsupportedMediaType,
    body_of,
)

TABLE = {
    # each code with its status, and whether a retry makes sense
    "malformed": (400, False),
    "too_large": (413, False),
    "unsupported_media_type": (415, False),
    "invalid": (422, False),
    "control_text": (422, False),
    "overloaded": (429, True),
    "draining": (503, True),
    "deadline_exceeded": (504, True),
    "out_of_memory": (507, True),
    "scoring_failed": (500, False),
}
"""Code -> status, retryable: the table of the contract."""

ONE_OF_EACH: dict[str, SemifError] = {
    "malformed": Malformed(),
    "too_large": TooLarge("The prompt is too long", size=4097, limit=4096, unit="tokens"),
    "unsupported_media_type": UnsupportedMediaType(),
    "invalid": Invalid("A description must not be blank.", field="options[0].description"),
    "control_text": ControlText(field="state"),
    "overloaded": Overloaded("The queue is full", limit=9, unit="requests", retry_after_ms=120),
    "draining": Draining(),
    "deadline_exceeded": DeadlineExceeded(),
    "out_of_memory": OutOfMemory(),
    "scoring_failed": ScoringFailed(),
}


@pytest.mark.parametrize("code", TABLE)
def test_each_row_of_the_table_goes_out_as_written(code: str) -> None:
    """Code, status and whether to try again."""
    body = body_of(ONE_OF_EACH[code])
    assert (body.code, body.status, body.retryable) == (code, *TABLE[code])


def test_every_error_class_is_a_row_of_the_table() -> None:
    """No class without a row, no row without a class, no class left out of ``ERRORS``."""
    classes: list[type[SemifError]] = []
    unseen: list[type[SemifError]] = [SemifError]
    while unseen:
        children = unseen.pop().__subclasses__()
        classes += children
        unseen += children
    classes = [error for error in classes if not error.__module__.startswith("test")]
    assert {error.code for error in classes} == set(TABLE)
    assert len(classes) == len(TABLE)
    assert set(classes) == set(ERRORS)
    assert len(ERRORS) == len(TABLE)


@pytest.mark.parametrize("error", ERRORS)
def test_header_texts_fit_in_a_nats_header(error: type[SemifError]) -> None:
    """Printable ASCII on one line, and not empty."""
    assert error.summary
    assert error.summary.isascii()
    assert error.summary.isprintable()
    assert error.summary == error.summary.strip()


@pytest.mark.parametrize("code", TABLE)
def test_messages_are_sentences(code: str) -> None:
    """A capital letter, a full stop, one line."""
    message = body_of(ONE_OF_EACH[code]).message
    assert message[0].isupper()
    assert message.endswith(".")
    assert message.isprintable()


def test_a_size_error_says_both_numbers_and_the_unit() -> None:
    """The caller learns by how much to shorten."""
    body = body_of(ONE_OF_EACH["too_large"])
    assert body.message == "The prompt is too long: 4097 tokens, the limit is 4096."


def test_overload_says_when_to_come_back() -> None:
    """``retry_after_ms`` is in the body, for programs."""
    body = body_of(ONE_OF_EACH["overloaded"])
    assert body.retry_after_ms == 120
    assert body.message == "The queue is full, the limit is 9 requests."


@pytest.mark.parametrize(
    ("code", "field"),
    [
        ("unsupported_media_type", "Content-Type"),
        ("invalid", "options[0].description"),
        ("control_text", "state"),
        ("malformed", None),
        ("draining", None),
    ],
)
def test_the_field_at_fault_is_named(code: str, field: str | None) -> None:
    """A path in the body, or a header."""
    assert body_of(ONE_OF_EACH[code]).field == field


def test_an_error_without_facts_says_its_summary() -> None:
    """The fixed text, as a sentence."""
    assert body_of(Draining()) == ErrorBody(
        code="draining", status=503, message="This actor is stopping.", retryable=True
    )


def test_control_text_is_a_kind_of_invalid() -> None:
    """Who catches 422 catches both."""
    assert isinstance(ControlText(), Invalid)
