"""Which rules feed which, and which would take each other's events."""

from __future__ import annotations

import pytest
from rule_samples import rule_text

from actor.rules.rulefile import RulesError, parse


def text(name: str, source: str, sink: str) -> str:
    return rule_text(
        name=name,
        source=f'{{ subject = "{source}" }}',
        sinks=f'[[rules.sinks]]\nsubject = "{sink}"\n',
    )


def complaints(*rules: str) -> list[str]:
    try:
        parse("".join(rules), "f", prefix="semif.v1")
    except RulesError as error:
        return [str(mistake) for mistake in error.mistakes]
    return []


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ("a.b", "a.b"),
        ("a.*", "a.{choice}"),
        ("a.>", "a.b.{choice}"),
        ("a.>", "{subject}.done"),
        ("a.billing", "a.{choice}"),
        ("*.done", "{event:/x}.done"),
        ("a.*.c", "{subject:1}.{subject:2}.c"),
    ],
)
def test_a_rule_that_feeds_itself_is_refused(source: str, sink: str) -> None:
    """Wherever a subject that it makes may be one that it reads."""
    assert complaints(text("r", source, sink)) == [
        'rule "r": sinks: what it publishes comes back to it: r -> r'
    ]


@pytest.mark.parametrize(
    ("source", "sink"),
    [("a.new", "a.{choice}"), ("a.*", "a.b.{choice}"), ("a.>", "b.{subject}"), ("a.*", "a")],
)
def test_subjects_that_only_look_alike_are_no_loop(source: str, sink: str) -> None:
    """The choices are known, and so is the number of tokens."""
    assert complaints(text("r", source, sink)) == []


def test_a_chain_is_no_loop() -> None:
    """One rule may read what another publishes."""
    assert complaints(text("first", "a", "b"), text("second", "b", "c")) == []


def test_a_loop_over_several_rules_is_told_once_with_its_way() -> None:
    """The shortest way back, from the first rule that is on it."""
    rules = (text("start", "z", "a"), text("x", "a", "b"), text("y", "b", "c"), text("w", "c", "a"))
    assert complaints(*rules) == [
        'rule "x": sinks: what it publishes comes back to it: x -> y -> w -> x'
    ]


def test_two_rules_of_one_queue_group_would_share_their_events() -> None:
    """Each event would reach one of them, by chance."""
    source = '{ subject = "in.%s", queue_group = "g" }'
    first = rule_text(name="one", source=source % "*")

    assert complaints(first, rule_text(name="two", source=source % "x")) == [
        'rule "two": source: shares queue group "g" with rule "one": each would miss events'
    ]
    assert complaints(first, rule_text(name="two", source=source % "x.y")) == []
    assert complaints(first, rule_text(name="two", source='{ subject = "in.*" }')) == []


def test_two_rules_of_one_consumer_would_share_their_events() -> None:
    """A durable belongs to one rule."""
    source = '{ subject = "in.%s", stream = "%s", durable = "d" }'
    first = rule_text(name="one", source=source % ("a", "S"))

    [complaint] = complaints(first, rule_text(name="two", source=source % ("b", "S")))
    assert 'shares durable "d" of stream "S" with rule "one"' in complaint
    assert complaints(first, rule_text(name="two", source=source % ("b", "T"))) == []
