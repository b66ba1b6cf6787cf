"""Templates of subjects: what they may say, what they make, what they never let through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor.rules.subject import fault_of_subject, overlap
from actor.rules.template import BadSubject, Scope, TemplateError, compile_template, render

SCOPE = Scope(
    rule="sort",
    source=("in", "*", ">"),
    choices={"kind": ("billing", "other")},
    has_fields=True,
)
TWO = Scope("sort", ("in", "x"), {"kind": ("a", "b"), "when": ("now", "to day")}, has_fields=False)
EVENT: dict[str, Any] = {"id": 7, "s": "x-1", "yes": True, "a/b": {"}": 1}, "list": ["l0"]}


def made(template: str, event: Any = EVENT, subject: str = "in.eu.7.z") -> str:
    return render(
        compile_template(template, SCOPE), subject=subject, event=event, choices={"kind": "other"}
    )


@pytest.mark.parametrize(
    ("template", "subject"),
    [
        ("plain.text", "plain.text"),
        ("{rule}", "sort"),
        ("out.{choice}", "out.other"),
        ("out.{choice:kind}.end", "out.other.end"),
        ("{subject}.done", "in.eu.7.z.done"),
        ("out.{subject:2}", "out.eu"),
        ("out.{subject:4}", "out.z"),
        ("out.{event:/id}", "out.7"),
        ("out.{event:/s}", "out.x-1"),
        ("out.{event:/yes}", "out.true"),
        ("out.{event:/list/0}", "out.l0"),
        ("out.{rule}-{subject:2}-{choice}-{event:/id}.x", "out.sort-eu-other-7.x"),
    ],
)
def test_placeholders_stand_for_what_they_say(template: str, subject: str) -> None:
    """Each placeholder, alone in a token and inside one."""
    assert made(template) == subject


@pytest.mark.parametrize(
    "template",
    [
        "",
        "a..b",
        "a.",
        ".a",
        "a b",
        "a.*",
        "a.>",
        "a\n",
        "é",
        "a" * 256,
        "$JS.{choice}",
        "_INBOX.x",
        "{",
        "}",
        "{}",
        "{nothing}",
        "{choice",
        "a}b",
        "{{choice}}",
        "{Choice}",
        "{choice }",
        "{rule:x}",
        "{event}",
        "{event:id}",
        "{event:/~2}",
        "{event:/a}b}",
        "{choice:none}",
        "{subject:0}",
        "{subject:x}",
        "{subject:-1}",
        "{subject:}",
        "{subject:01}",
        "x{subject}",
    ],
)
def test_a_template_that_cannot_work_is_refused_at_once(template: str) -> None:
    """Neither a placeholder that does not exist nor a subject that cannot waits for an event."""
    with pytest.raises(TemplateError):
        compile_template(template, SCOPE)


@pytest.mark.parametrize("template", ["{choice}", "{subject:3}", "{event:/a}", "{choice:when}"])
def test_what_the_rule_does_not_offer_is_refused(template: str) -> None:
    """One choice of two questions, a third token of two, fields of a text, an id with a blank."""
    with pytest.raises(TemplateError):
        compile_template(template, TWO)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a.b",
        "a b",
        "*",
        ">",
        "a*",
        "é",
        "a\n",
        "\0",
        "\r\nPUB x 0",
        None,
        1.5,
        [],
        {},
        "x" * 256,
    ],
)
def test_a_field_that_is_no_token_makes_no_subject(value: Any) -> None:
    """Dots, blanks, wildcards and control characters cannot come in by an event's field."""
    with pytest.raises(BadSubject):
        made("out.{event:/v}", {"v": value})


def test_a_field_that_is_not_there_makes_no_subject() -> None:
    """A missing field is no empty token."""
    with pytest.raises(BadSubject):
        made("out.{event:/nothing}")


@pytest.mark.parametrize("subject", ["in.*.x", "in..x", "in.a b.x", "in.>", "in"])
def test_a_source_subject_that_is_no_subject_makes_none(subject: str) -> None:
    """The server lets such subjects through to a reader of ``>``; they go no further."""
    with pytest.raises(BadSubject):
        made("out.{subject:2}", subject=subject)


@pytest.mark.parametrize("value", ["$JS", "$SYS", "_INBOX", "_INBOX_x"])
def test_no_event_reaches_the_servers_own_subjects(value: str) -> None:
    """A first token that belongs to NATS is refused whoever brings it."""
    with pytest.raises(BadSubject):
        made("{event:/v}.API.STREAM.DELETE.ORDERS", {"v": value})


@pytest.mark.parametrize("secret", ["hunter 2", "a.b"])
def test_the_reason_holds_nothing_of_the_event(secret: str) -> None:
    """What goes to logs and dead letters names the field, not its value."""
    with pytest.raises(BadSubject) as caught:
        made("out.{event:/v}", {"v": secret})
    assert secret not in str(caught.value)
    assert "{event:/v}" in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.lists(st.text(), min_size=1).map(".".join),
)
def test_what_is_made_is_a_subject_of_the_templates_shape(value: Any, source: str) -> None:
    """Whatever event and source say, there is a subject of four tokens under ``out``, or none."""
    template = compile_template("out.{event:/v}.x-{subject:2}.{choice}", SCOPE)
    try:
        subject = render(template, subject=source, event={"v": value}, choices={"kind": "other"})
    except BadSubject:
        return
    assert fault_of_subject(subject) is None
    assert len(subject.split(".")) == 4
    assert subject.startswith("out.")
    assert subject.endswith(".other")
    assert overlap(template.pattern, subject), "the pattern takes in what is made"


@given(st.text(alphabet="ab.{}:/*> $0é", max_size=20))
def test_any_text_is_a_template_or_refused_as_one(text: str) -> None:
    """No text does anything else to the reader of a rule file."""
    try:
        compile_template(text, SCOPE)
    except TemplateError:
        return


@pytest.mark.parametrize(
    ("template", "subject_filter", "meet"),
    [
        ("out.x", "out.*", True),
        ("out.x", "out", False),
        ("out.{choice}", "out.billing", True),
        ("out.{choice}", "out.new", False),
        ("out.{choice}-x", "out.other-x", True),
        ("out.{event:/id}", "out.new", True),
        ("out.{subject:1}", "out.in", True),
        ("out.{subject:1}", "out.other", False),
        ("out.{subject:2}", "out.other", True),
        ("{subject}.done", "in.>", True),
        ("{subject}.done", "in.a.b.c.done", True),
        ("{subject}.done", "in.a.b.c.over", False),
        ("{subject}.done", "in.done", False),
        ("pre.{subject}", "in.>", False),
    ],
)
def test_a_template_knows_which_subjects_it_can_make(
    template: str, subject_filter: str, meet: bool
) -> None:
    """Choices are known beforehand, tokens of the source as far as it names them."""
    assert overlap(compile_template(template, SCOPE).pattern, subject_filter) is meet
