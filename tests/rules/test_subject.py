"""What a subject may be, and whether two filters can meet."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor.rules.subject import (
    fault_of_filter,
    fault_of_subject,
    is_token,
    overlap,
    pattern_of_filter,
)


@pytest.mark.parametrize("subject", ["a", "a.b", "A-1._x.7", "a" * 255, "a./{}"])
def test_subjects_that_can_be_published_to(subject: str) -> None:
    """Printable ASCII tokens, up to 255 bytes together."""
    assert fault_of_subject(subject) is None
    assert fault_of_filter(subject) is None


@pytest.mark.parametrize(
    "subject",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        "a\tb",
        "a\nb",
        "a.b\r",
        "a\0",
        "é",
        "a" * 256,
        "a\x7f",
        "$JS.API.STREAM.DELETE.X",
        "$SYS.x",
        "$x",
        "_INBOX.x",
        "_INBOX_actor.x",
        "_R_.x.y",
    ],
)
def test_subjects_that_nobody_may_use(subject: str) -> None:
    """Empty tokens, blanks, control characters, NATS's own subjects, replies of others."""
    assert fault_of_subject(subject)
    assert fault_of_filter(subject)


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>", "*.b.>"])
def test_wildcards_are_for_reading(subject: str) -> None:
    """A filter may have them, a subject to publish to may not."""
    assert fault_of_filter(subject) is None
    assert fault_of_subject(subject)


@pytest.mark.parametrize("subject", [">.a", "a*", "a.b>", "**", "a.>.b"])
def test_wildcards_stand_alone_and_the_long_one_last(subject: str) -> None:
    """Elsewhere the server takes them for letters, which nobody means."""
    assert fault_of_filter(subject)


@given(st.text(max_size=3))
def test_a_token_can_neither_part_nor_widen_a_subject(text: str) -> None:
    """What may be put into a subject is one token of it and no wildcard."""
    if is_token(text):
        assert re.fullmatch(r"[\x21-\x7e]+", text)
        assert not set(text) & set(".*>")


NAMES = ("a", "b")
SUBJECTS = [".".join(tokens) for n in range(1, 6) for tokens in itertools.product(NAMES, repeat=n)]


def matches(subject: str, subject_filter: str) -> bool:
    """Match as the NATS documentation says, by a regular expression."""
    wildcards = {"*": "[ab]", ">": r"[ab](\.[ab])*"}
    tokens = (wildcards.get(token, token) for token in subject_filter.split("."))
    return re.fullmatch(r"\.".join(tokens), subject) is not None


FILTERS = st.lists(st.sampled_from([*NAMES, "*"]), min_size=1, max_size=3).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens, ">"]), ">"])
)


@given(FILTERS, FILTERS)
def test_filters_overlap_when_a_subject_fits_both(first: str, second: str) -> None:
    """Told from the filters alone, it is what trying every short subject finds."""
    found = any(matches(each, first) and matches(each, second) for each in SUBJECTS)

    assert overlap(pattern_of_filter(first), second) == found
