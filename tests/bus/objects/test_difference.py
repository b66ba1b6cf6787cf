"""Which subjects a filter covers, and how a difference reads."""

from __future__ import annotations

import itertools
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor.bus.objects.difference import Difference, covers

TOKENS = ("a", "b")
SUBJECTS = [
    ".".join(tokens) for size in range(1, 5) for tokens in itertools.product(TOKENS, repeat=size)
]


def matches(subject_filter: str, subject: str) -> bool:
    """Say by NATS's definition whether a filter takes a subject: token by token, ``>`` the rest."""
    filters, tokens = subject_filter.split("."), subject.split(".")
    if filters[-1] == ">":
        filters = [*filters[:-1], *["*"] * max(1, len(tokens) - len(filters) + 1)]
    pairs = zip(tokens, filters, strict=False)
    return len(filters) == len(tokens) and all(itertools.starmap(fnmatchcase, pairs))


FILTERS = st.builds(
    lambda tokens, end: ".".join([*tokens, *end]),
    st.lists(st.sampled_from((*TOKENS, "*")), min_size=1, max_size=3),
    st.sampled_from(([], [">"])),
)


@given(FILTERS, FILTERS)
def test_a_filter_covers_another_when_it_takes_all_of_its_subjects(outer: str, inner: str) -> None:
    """Against the definition, over every subject of up to four tokens."""
    taken = [subject for subject in SUBJECTS if matches(inner, subject)]

    assert covers(outer, inner) == all(matches(outer, subject) for subject in taken)


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        (">", "a", True),
        (">", ">", True),
        ("*", ">", False),
        ("a.>", "a", False),
        ("a", "a.b", False),
    ],
)
def test_the_whole_and_its_parts(outer: str, inner: str, expected: bool) -> None:
    """The corners by hand."""
    assert covers(outer, inner) is expected


def test_a_difference_reads_as_a_sentence() -> None:
    """Object, field, found, wanted, and who has to do what."""
    one = Difference("stream S", "storage", "memory", "file", "name another stream")
    other = Difference("stream S", "", "missing", "for jobs", changes={"name": "S"})

    assert str(one) == "stream S: storage is memory, wanted file (name another stream)"
    assert str(other) == "stream S is missing, wanted for jobs (semif-actor stream apply)"
