"""Reading a rule file: what it may say, and how its mistakes are told."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_samples import SINK, TOPIC, URGENCY, rule, rule_text

from actor.rules.pointer import Pointer
from actor.rules.rule import CoreSource, Picked, StreamSource
from actor.rules.rulefile import RulesError, load, parse
from actor.rules.tables import QuestionTable, RuleTable, SinkTable, SourceTable

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "ops" / "rules.example.toml"


def mistakes(text: str) -> list[str]:
    with pytest.raises(RulesError) as caught:
        parse(text, "rules.toml", prefix="semif.v1")
    return [str(mistake) for mistake in caught.value.mistakes]


def test_the_example_is_a_rule_file() -> None:
    """What users copy from holds a core source, a stream, a text, and three modes of thinking."""
    tickets, orders, logs = load(EXAMPLE, prefix="semif.v1")

    assert tickets.source == CoreSource("tickets.new", "semif-tickets")
    assert tickets.state == (
        Picked("title", Pointer("/title", ("title",))),
        Picked("text", Pointer("/body/text", ("body", "text"))),
    )
    assert tickets.on_missing == "null"
    assert tickets.asking[0].otherwise == "people"
    assert orders.source == StreamSource("orders.*.placed", "ORDERS", "semif-orders")
    assert [asking.question.id for asking in orders.asking] == ["fraud", "urgency"]
    assert [(sink.mode, sink.stream, sink.when) for sink in orders.sinks] == [
        ("decision", "DECISIONS", "always"),
        ("wrap", None, "unsure"),
    ]
    assert logs.source == CoreSource("logs.>", "log-triage")
    assert (logs.form, logs.state, logs.on_missing) == ("text", None, "dead")


def test_the_example_shows_every_key() -> None:
    """But those whose default is what nearly everybody wants."""
    text = EXAMPLE.read_text(encoding="utf-8")
    keys = {
        name
        for table in (RuleTable, SourceTable, QuestionTable, SinkTable)
        for name in table.__struct_fields__
    }
    assert {key for key in keys if f"{key} =" not in text and f".{key}]]" not in text} == {
        "durable"
    }
    assert tomllib.loads(text)["hops_max"] == 3


def test_defaults() -> None:
    """A rule needs a name, a subject, a question and a sink."""
    made = rule()

    assert made.source == CoreSource("in.*", "semif-r")
    assert (made.form, made.state, made.on_missing, made.hops_max) == ("json", None, "dead", 3)
    assert (made.sinks[0].mode, made.sinks[0].when, made.sinks[0].stream) == (
        "annotate",
        "always",
        None,
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (rule_text("bogus = 1"), "bogus: is not a key"),
        (rule_text(name="a b"), "name: takes letters, digits, - and _ only"),
        (rule_text(name=""), "name: takes letters, digits, - and _ only"),
        (rule_text(name="x" * 65), "name: Expected `str` of length <= 64"),
        (rule_text(source='{ subject = "a..b" }'), "source.subject: a subject has no empty token"),
        (rule_text(source="{}"), "source: Object missing required field `subject`"),
        (rule_text(source='{ subject = "a", x = 1 }'), "source.x: is not a key"),
        (rule_text(source='{ subject = "semif.v1.score" }'), "source.subject: takes the actor's"),
        (rule_text(source='{ subject = ">" }'), "source.subject: takes the actor's"),
        (rule_text(source='{ subject = "*.*.*" }'), "source.subject: takes the actor's"),
        (rule_text(source='{ subject = "$SYS.>" }'), "source.subject: subjects that begin with"),
        (rule_text(source='{ subject = "_INBOX.>" }'), "source.subject: subjects that begin with"),
        (rule_text(source='{ subject = "a", durable = "d" }'), "source.durable: has no effect"),
        (
            rule_text(source='{ subject = "a", stream = "S", queue_group = "q" }'),
            "source.queue_group: has no effect",
        ),
        (
            rule_text(source='{ subject = "a", stream = "S.x" }'),
            "source.stream: takes letters, digits, - and _ only",
        ),
        (rule_text('state = "body"'), 'state: is "event", or a JSON Pointer'),
        (rule_text('state = ""'), 'state: is "event", or a JSON Pointer'),
        (rule_text('state = "/a~2"'), "state: in a JSON Pointer"),
        (rule_text('state = { x = "a" }'), "state.x: a JSON Pointer begins with"),
        (rule_text("state = {}"), "state: needs a name"),
        (rule_text('state = { "" = "/a" }'), "state: needs a name"),
        (rule_text("state = 5"), "state: Expected"),
        (rule_text('format = "text"\nstate = "/a"'), "state: of a text"),
        (rule_text('format = "xml"'), "format: Invalid enum value 'xml'"),
        (rule_text('on_missing = "skip"'), "on_missing: has no effect"),
        (rule_text('state = "/a"\non_missing = "null"'), "on_missing: null alone is no state"),
        (rule_text('state = "/a"\non_missing = "drop"'), "on_missing: Invalid enum value 'drop'"),
        (rule_text(questions="questions = []\n"), "questions: Expected `array` of length >= 1"),
        (rule_text(questions=TOPIC + TOPIC), "questions[1].id: another question"),
        (
            rule_text(questions=TOPIC + TOPIC.replace('"topic"', '"TOPIC"')),
            "questions[1].id: another question",
        ),
        (rule_text(questions=TOPIC.replace("About", "") + "x = 1\n"), "questions[0].x: is not a"),
        (
            rule_text(questions=TOPIC.replace("What is it about?", " ")),
            "questions[0].question: The",
        ),
        (
            rule_text(questions=TOPIC.replace("Not money.", "Money.")),
            "questions[0].options[1].description: Descriptions must differ.",
        ),
        (rule_text(questions=TOPIC + "min_margin = 1.5\n"), "questions[0].min_margin: Expected"),
        (rule_text(questions=TOPIC + "min_margin = nan\n"), "questions[0].min_margin: Expected"),
        (rule_text(questions=TOPIC + 'otherwise = "x"\n'), "questions[0].otherwise: has no effect"),
        (rule_text(sinks=SINK + 'when = "sure"\n'), "sinks[0].when: every decision is sure"),
        (rule_text(sinks=SINK + 'mode = "copy"\n'), "sinks[0].mode: Invalid enum value 'copy'"),
        (rule_text(sinks=SINK + "retries = 3\n"), "sinks[0].retries: is not a key"),
        (rule_text(sinks=SINK.replace("{rule}", "{x}")), "sinks[0].subject: {x} is no placeholder"),
        (
            rule_text(sinks=SINK.replace("out.{rule}", "{event:/a}.{event:/b}.x")),
            "sinks[0].subject",
        ),
        (rule_text(sinks=SINK.replace("out", "semif.v1")), "sinks[0].subject: may be one of"),
        (
            rule_text(questions=TOPIC + URGENCY, sinks=SINK.replace("{rule}", "{choice}")),
            "{choice:id}",
        ),
        (
            rule_text(
                questions=TOPIC.replace('"billing"', '"a b"'),
                sinks=SINK.replace("{rule}", "{choice}"),
            ),
            'sinks[0].subject: "a b" cannot be a part of a subject',
        ),
    ],
)
def test_a_mistake_is_told_with_rule_and_field(text: str, complaint: str) -> None:
    """One mistake in, one complaint out, and it says where."""
    [told] = mistakes(text)
    assert told.startswith(('rule "', "rules[")), told
    assert complaint in told


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "missing required field `rules`"),
        ("rules = []", "length >= 1"),
        ("rules = 5", "Expected `array`"),
        ("rules = [5]", "Expected `object`"),
        ("rule = []", "unknown field `rule`"),
        ("hops_max = 0\n" + rule_text(), "hops_max"),
        ("= nonsense", "Invalid"),
        ("x = " + "9" * 5000, "integer"),
        ("x = " + "[" * 5000, "recursion"),
    ],
)
def test_a_file_that_is_none_is_one_mistake(text: str, complaint: str) -> None:
    """Bad TOML, and a top level of another shape."""
    [told] = mistakes(text)
    assert complaint.lower() in told.lower()


def test_every_mistake_is_told_at_once() -> None:
    """A person mends the file once, not once for each mistake."""
    bad = rule_text(
        'bogus = 1\nstate = "body"',
        source='{ subject = "a..b" }',
        questions=TOPIC + "x = 1\n",
        sinks=SINK + "y = 1\n",
    )
    told = mistakes(bad + rule_text(name="s", sinks=SINK.replace("{rule}", "{x}")))

    assert told == [
        'rule "r": bogus: is not a key',
        'rule "r": source.subject: a subject has no empty token',
        'rule "r": state: is "event", or a JSON Pointer, which begins with "/"',
        'rule "r": questions[0].x: is not a key',
        'rule "r": sinks[0].y: is not a key',
        'rule "s": sinks[0].subject: {x} is no placeholder',
    ]


def test_names_are_given_once() -> None:
    """They name consumers and queue groups."""
    told = mistakes(rule_text() + rule_text(source='{ subject = "other" }'))
    assert 'rule "r": name: another rule has this name' in told


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The message names the file first, as for every mistake."""
    path = tmp_path / "rules.toml"
    for make in (lambda: None, lambda: path.write_bytes(b"\xff")):
        make()
        with pytest.raises(RulesError, match="cannot be read") as caught:
            load(path, prefix="semif.v1")
        assert str(caught.value).startswith(f"{path}: ")


def test_the_prefix_is_the_actors() -> None:
    """Another prefix keeps other subjects."""
    text = rule_text(source='{ subject = "acme.score" }')
    assert parse(text, "f", prefix="semif.v1")
    with pytest.raises(RulesError):
        parse(text, "f", prefix="acme")


TOML_VALUES = st.recursive(
    st.booleans() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
)


@given(st.data())
def test_any_value_in_any_place_is_read_or_told(data: st.DataObject) -> None:
    """Whatever stands where, the end is rules or mistakes."""
    whole = tomllib.loads(rule_text())
    [table] = whole["rules"]
    place = data.draw(
        st.sampled_from(
            [
                table,
                table["source"],
                table["questions"][0],
                table["sinks"][0],
                table["questions"][0]["options"][0],
            ]
        )
    )
    place[data.draw(st.sampled_from(sorted(place)) | st.text(max_size=3))] = data.draw(TOML_VALUES)
    text = f"rules = [{_inline(table)}]"
    try:
        told: tuple[object, ...] = parse(text, "f", prefix="semif.v1")
    except RulesError as error:
        told = error.mistakes
    assert told


def _inline(value: object) -> str:
    """Write TOML on one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_inline(k)} = {_inline(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_inline, value)) + "]"
        case float():
            return repr(value)
        case _:
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
