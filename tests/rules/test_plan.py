"""What a rule asks about an event, and how the event ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_samples import (
    LIMITS,
    TOPIC,
    URGENCY,
    asked,
    decided,
    message,
    rule,
    score_reply,
    shared_reply,
)

from actor.engine.base import Question
from actor.rules.plan import Asked, Limits, ask, decide, refuse
from actor.rules.rule import Rule
from schemas.errors import Invalid, Malformed, OutOfMemory, Overloaded, TooLarge

UNSURE = TOPIC + 'min_probability = 0.8\nmin_margin = 0.5\notherwise = "people"\n'
SORTED = '[[rules.sinks]]\nsubject = "out.{choice}"\n'
FIELD = '[[rules.sinks]]\nsubject = "out.{event:/id}"\n'


def code(made: Rule, payload: bytes, limits: Limits = LIMITS, **parts: Any) -> str:
    end = ask(made, message(payload, **parts), limits)
    assert not isinstance(end, Asked)
    return end.outcome.code


def test_one_question_is_a_score() -> None:
    """The whole event is the state, and the question goes as the rule has it."""
    work = asked(rule(), message(b'{"a": [1, null]}')).work

    assert not work.shared
    assert work.state == {"a": [1, None]}
    assert work.ids == ("topic",)
    [question] = work.questions
    assert isinstance(question, Question)
    assert question.question == "What is it about?"
    assert [option.id for option in question.options] == ["billing", "other"]


def test_several_questions_are_asked_together() -> None:
    """One state, read by the model once."""
    work = asked(rule(questions=TOPIC + URGENCY), message()).work

    assert work.shared
    assert work.ids == ("topic", "urgency")
    assert work.state == {"a": 1}


@pytest.mark.parametrize(
    ("keys", "payload", "state"),
    [
        ('state = "event"', b'"text"', "text"),
        ('state = "/a"', b'{"a": {"b": 1}}', {"b": 1}),
        ('state = "/a/0"', b'{"a": ["x"]}', "x"),
        ('state = { x = "/a", y = "/b/c" }', b'{"a": 1, "b": {"c": null}}', {"x": 1, "y": None}),
        ('state = { all = "" }', b"7", {"all": 7}),
        ('state = { x = "/a", y = "/b" }\non_missing = "null"', b'{"a": 1}', {"x": 1, "y": None}),
        ('format = "text"', b"a line\n", "a line\n"),
    ],
)
def test_the_state_is_what_the_rule_picks(keys: str, payload: bytes, state: Any) -> None:
    """The event, a part, named parts; null where nothing is, if the rule says so."""
    assert asked(rule(keys), message(payload)).work.state == state


@pytest.mark.parametrize(
    ("keys", "payload", "end"),
    [
        ("", b"", "empty"),
        ("", b"nope", "not_json"),
        ("", b"\xff", "binary"),
        ("", b"[" + b"1," * 9000 + b"1]", "too_large"),
        ("", b"[" * 9 + b"]" * 9, "too_deep"),
        ("", b"[" * 4000 + b"]" * 4000, "too_deep"),
        ("", b"7", "bad_state"),
        ("", b"null", "bad_state"),
        ("", b"true", "bad_state"),
        ("", b"{}", "bad_state"),
        ("", b"[]", "bad_state"),
        ("", b'""', "bad_state"),
        ('state = "/a"', b'{"a": 1}', "bad_state"),
        ('state = "/a"', b'{"a": ""}', "bad_state"),
        ('state = "/a"', b'{"b": 1}', "missing"),
        ('state = "/a"', b'"text"', "missing"),
        ('state = { x = "/a", y = "/b" }', b'{"a": 1}', "missing"),
        ('state = "/a"\non_missing = "skip"', b'{"b": 1}', "missing_skipped"),
        ('state = "/a"\non_missing = "dead"', b'{"b": 1}', "missing"),
        ('format = "text"', b"\xff", "binary"),
        ('format = "text"', b" \n", "empty"),
    ],
)
def test_every_bad_event_has_its_outcome(keys: str, payload: bytes, end: str) -> None:
    """The inputs that the issue names, each with one code."""
    assert code(rule(keys), payload) == end


@pytest.mark.parametrize(
    ("sink", "payload", "subject"),
    [
        ("out.{event:/id}", b'{"id": "a.b"}', "in.x"),
        ("out.{event:/id}", b'{"id": "a b"}', "in.x"),
        ("out.{event:/id}", b'{"id": "*"}', "in.x"),
        ("out.{event:/id}", b'{"id": ">"}', "in.x"),
        ("out.{event:/id}", b'{"id": ""}', "in.x"),
        ("out.{event:/id}", b'{"id": null}', "in.x"),
        ("out.{event:/id}", b'{"no": 1}', "in.x"),
        ("out.{event:/id}", b'{"id": "' + b"x" * 255 + b'"}', "in.x"),
        ("out.{subject:2}", b'{"a": 1}', "in.*"),
        ("out.{subject}", b'{"a": 1}', "in.a b"),
        ("out.{subject}", b'{"a": 1}', "in."),
        ("out.{subject:2}", b'{"a": 1}', "in"),
    ],
)
def test_a_subject_that_cannot_be_made_stops_before_the_model(
    sink: str, payload: bytes, subject: str
) -> None:
    """Only the choice is unknown beforehand, and choices are checked when the file is read."""
    made = rule(source='{ subject = "in.>" }', sinks=f'[[rules.sinks]]\nsubject = "{sink}"\n')
    assert code(made, payload, subject=subject) == "bad_subject"


def test_the_longest_choice_counts() -> None:
    """A subject that only some choices would make too long is refused beforehand."""
    made = rule(sinks='[[rules.sinks]]\nsubject = "out.{event:/id}.{choice}"\n')
    room = 255 - len("out..billing")

    assert isinstance(ask(made, message(b'{"id": "%s"}' % (b"x" * room)), LIMITS), Asked)
    assert code(made, b'{"id": "%s"}' % (b"x" * (room + 1))) == "bad_subject"


def test_an_event_that_goes_round_is_stopped() -> None:
    """The third rule on its way is the last, and each says that it was there."""
    headers: dict[str, str] = {}
    for hops in ("1", "2", "3"):
        [made] = decided(rule(), message(headers=headers)).publications
        assert made.headers["Semif-Hops"] == hops
        headers = made.headers

    assert code(rule(), b'{"a": 1}', headers=headers) == "loop"


@pytest.mark.parametrize(
    ("probability", "subject", "end", "sure"),
    [
        (0.9, "out.billing", "published", "true"),
        (0.8, "out.billing", "published", "true"),
        (0.79, "out.people", "otherwise", "false"),
        (0.5, "out.people", "otherwise", "false"),
    ],
)
def test_what_is_not_sure_goes_otherwise(
    probability: float, subject: str, end: str, sure: str
) -> None:
    """The subject says people; the headers say what the model thought all the same."""
    done = decided(
        rule(questions=UNSURE, sinks=SORTED), message(), score_reply("billing", probability)
    )

    [made] = done.publications
    assert done.outcome.code == end
    assert made.subject == subject
    assert made.headers["Semif-Choice"] == "billing"
    assert made.headers["Semif-Sure"] == sure


@pytest.mark.parametrize(("least", "sure"), [("0.5", "true"), ("0.51", "false")])
def test_the_margin_makes_sure_too(least: str, sure: str) -> None:
    """0.75 against 0.25 is a margin of 0.5."""
    made = rule(questions=TOPIC + f"min_margin = {least}\n", sinks=SORTED)
    [publication] = decided(made, message(), score_reply("billing", 0.75)).publications

    assert publication.headers["Semif-Sure"] == sure
    assert publication.subject == "out.billing", "without otherwise, the choice stands"


@pytest.mark.parametrize(
    ("probability", "subjects"), [(0.9, ["always", "only.sure"]), (0.6, ["always", "only.unsure"])]
)
def test_sinks_take_what_is_for_them(probability: float, subjects: list[str]) -> None:
    """``when`` parts the sure from the unsure."""
    sinks = """
    [[rules.sinks]]
    subject = "always"
    [[rules.sinks]]
    subject = "only.sure"
    when = "sure"
    [[rules.sinks]]
    subject = "only.unsure"
    when = "unsure"
    """
    done = decided(
        rule(questions=UNSURE, sinks=sinks), message(), score_reply("billing", probability)
    )
    assert [made.subject for made in done.publications] == subjects


def test_a_decision_for_no_sink_is_an_outcome() -> None:
    """Nobody wants the unsure ones: that is counted, not lost."""
    made = rule(questions=UNSURE, sinks='[[rules.sinks]]\nsubject = "a"\nwhen = "sure"\n')
    end = decide(asked(made, message()), score_reply("billing", 0.6), LIMITS)
    assert end.outcome.code == "no_sink"


def test_one_unsure_answer_of_several_makes_the_event_unsure() -> None:
    """The subject takes ``otherwise`` for that question alone."""
    made = rule(
        questions=UNSURE + URGENCY,
        sinks='[[rules.sinks]]\nsubject = "{choice:topic}.{choice:urgency}"\n',
    )
    done = decided(made, message(), shared_reply(topic=0.6, urgency=0.9))

    [publication] = done.publications
    assert done.outcome.code == "otherwise"
    assert publication.subject == "people.later"
    assert publication.headers["Semif-Sure-topic"] == "false"
    assert publication.headers["Semif-Sure-urgency"] == "true"
    assert publication.headers["Semif-Sure"] == "false"


GONE = TooLarge("A prompt", size=9, limit=1, unit="tokens")
LATER = OutOfMemory()


@pytest.mark.parametrize(
    ("topic", "urgency", "end", "code"),
    [
        (GONE, 0.9, "refused", "too_large"),
        (0.9, LATER, "retry", "out_of_memory"),
        (LATER, GONE, "refused", "too_large"),
    ],
)
def test_a_question_that_is_refused_stops_the_event(
    topic: Any, urgency: Any, end: str, code: str
) -> None:
    """Half a decision is published nowhere; what is refused for good is not tried again."""
    made = rule(questions=TOPIC + URGENCY)
    stopped = decide(asked(made, message()), shared_reply(topic, urgency), LIMITS)

    assert stopped.outcome.code == end
    assert not hasattr(stopped, "publications")
    assert getattr(stopped, "reason", "").endswith(f": {code}")


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (Overloaded("The queue is full", limit=1, unit="requests", retry_after_ms=5), "retry"),
        (Malformed(), "refused"),
        (Invalid(), "refused"),
        (GONE, "refused"),
    ],
)
def test_work_that_is_refused_as_a_whole(error: Any, end: str) -> None:
    """The error's own word on retries decides."""
    stopped = refuse(rule(), error)
    assert stopped.outcome.code == end
    assert stopped.reason.endswith(f": {error.code}")


def test_what_the_server_would_not_take_is_not_published() -> None:
    """One byte under what the message needs, headers included, is an outcome of its own."""
    question = asked(rule(), message())
    [made] = decided(rule(), message()).publications
    # NATS/1.0 and its line end, each header's name, colon, blank, value and line end, one more.
    lines = "".join(f"{name}: {value}\r\n" for name, value in made.headers.items())
    size = len(f"NATS/1.0\r\n{lines}\r\n".encode()) + len(made.payload)

    def end(limit: int) -> str:
        return decide(question, score_reply(), Limits(10_000, 8, limit)).outcome.code

    assert end(size) == "published"
    assert end(size - 1) == "oversize"


@pytest.mark.parametrize("payload", [b'{"secret": 1}', b"secret", b'{"id": "secret secret"}'])
def test_reasons_name_rule_and_field_and_nothing_of_the_event(payload: bytes) -> None:
    """Logs and dead-letter headers may be read by people who may not read events."""
    end = ask(rule(sinks=FIELD), message(payload), LIMITS)

    assert not isinstance(end, Asked)
    assert end.reason.startswith('rule "r": ')
    assert "secret" not in end.reason


RULES = (rule('state = "/a"', sinks=FIELD), rule(), rule('format = "text"'))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    JSON_VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(),
    st.text(),
    st.dictionaries(st.text(min_size=1), st.text()),
)
def test_every_event_is_asked_about_or_has_an_outcome(
    payload: bytes, subject: str, headers: dict[str, str]
) -> None:
    """Nothing raises, whatever the bus delivers; what is asked can be published or says why not."""
    for each in RULES:
        end = ask(each, message(payload, headers, subject=subject), LIMITS)
        if isinstance(end, Asked):
            decide(end, score_reply(), LIMITS)
        else:
            assert end.outcome.action in {"dead", "skip"}
