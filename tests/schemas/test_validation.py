"""What can be asked: SemIf's rules, and two of ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from semif_phase1.core import validate_row

from schemas.decision import Decision, Option
from schemas.errors import Invalid
from schemas.validation import check_decision, check_ids, check_state


def decision(question: str = "Which?", id: str | None = "d", **descriptions: str) -> Decision:  # noqa: A002
    """Build a decision; its options are the keywords: id=description."""
    pairs = descriptions or {"a": "One", "b": "Two"}
    options = tuple(Option(id=name, description=text) for name, text in pairs.items())
    return Decision(id=id, question=question, options=options)


def options(count: int) -> tuple[Option, ...]:
    return tuple(Option(id=f"o{n}", description=f"Option {n}") for n in range(count))


@pytest.mark.parametrize("state", ["", [], {}])
def test_an_empty_state_is_refused(state: Any) -> None:
    """No evidence, no decision."""
    with pytest.raises(Invalid) as refused:
        check_state(state)
    assert refused.value.field == "state"


@pytest.mark.parametrize("state", [" ", [None], {"": 0}, "0"])
def test_any_other_state_is_let_through(state: Any) -> None:
    """What the evidence means is the model's to judge."""
    check_state(state)


@pytest.mark.parametrize("count", [2, 3, 16])
def test_2_to_16_options_can_be_asked(count: int) -> None:
    """As many as SemIf has letters."""
    check_decision(Decision(question="Which?", options=options(count)))


@pytest.mark.parametrize("count", [0, 1, 17, 100])
def test_fewer_or_more_options_are_refused(count: int) -> None:
    """The sentence says how many there are."""
    with pytest.raises(Invalid, match=f"this one has {count}") as refused:
        check_decision(Decision(question="Which?", options=options(count)))
    assert refused.value.field == "options"


REFUSED = {
    "question empty": (decision(question=""), "question"),
    "question blank": (decision(question=" \n\t\u00a0\u2003"), "question"),
    "description empty": (decision(a="One", b=""), "options[1].description"),
    "description blank": (decision(a=" ", b="Two"), "options[0].description"),
    "descriptions equal": (decision(a="One", b="One"), "options[1].description"),
    "descriptions equal but for space": (decision(a="One", b=" One\n"), "options[1].description"),
    "descriptions equal, apart": (decision(a="One", b="Two", c="One"), "options[2].description"),
    "id empty": (decision(id=""), "id"),
    "id of 257 characters": (decision(id="i" * 257), "id"),
    "option id empty": (decision(**{"": "One", "b": "Two"}), "options[0].id"),
    "option id of 257 characters": (decision(a="One", **{"i" * 257: "Two"}), "options[1].id"),
    "option ids equal": (
        Decision(
            question="Which?",
            options=(Option(id="a", description="One"), Option(id="a", description="Two")),
        ),
        "options[1].id",
    ),
}


@pytest.mark.parametrize(("asked", "field"), REFUSED.values(), ids=REFUSED.keys())
def test_a_decision_that_cannot_be_asked_names_the_field(asked: Decision, field: str) -> None:
    """The path is the caller's own, in a single request and in a shared one."""
    with pytest.raises(Invalid) as refused:
        check_decision(asked)
    assert refused.value.field == field
    with pytest.raises(Invalid) as refused:
        check_decision(asked, at="decisions[7].")
    assert refused.value.field == f"decisions[7].{field}"


ASKED = {
    "no id": decision(id=None),
    "id of 256 characters": decision(id="i" * 256),
    "option id blank": decision(**{" ": "One", "b": "Two"}),
    "ids that differ in case": decision(a="One", A="Two"),
    "descriptions that differ in case": decision(a="One", b="one"),
    "description equal to an id": decision(a="b", b="a"),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_what_can_be_told_apart_can_be_asked(asked: Decision) -> None:
    """Ids are the caller's own affair; descriptions need only differ."""
    check_decision(asked)


texts = st.text(max_size=3)


@given(
    state=st.text(max_size=2) | st.lists(st.integers(), max_size=2),
    question=texts,
    name=texts,
    pairs=st.lists(st.tuples(texts, texts), max_size=18),
)
def test_whatever_is_let_through_semif_takes(
    state: Any, question: str, name: str, pairs: list[tuple[str, str]]
) -> None:
    """Our rules are SemIf's or stricter: its validation refuses nothing that ours let pass."""
    asked = Decision(
        id=name,
        question=question,
        options=tuple(Option(id=id_, description=text) for id_, text in pairs),
    )
    try:
        check_state(state)
        check_decision(asked)
    except Invalid:
        return
    validate_row(
        {
            "id": name,
            "state": state,
            "question": question,
            "options": [{"id": id_, "description": text} for id_, text in pairs],
        }
    )


def test_equal_decision_ids_are_refused_at_the_second() -> None:
    """Results are told apart by their ids."""
    check_ids(["a", "b", "A"])
    check_ids([])
    with pytest.raises(Invalid) as refused:
        check_ids(["a", "b", "a"])
    assert refused.value.field == "decisions[2].id"
