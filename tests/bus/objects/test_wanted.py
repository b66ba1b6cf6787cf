"""What settings and rules need, before anybody has looked at a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from rule_samples import TOPIC, URGENCY, rule, rule_text

from actor.bus.objects.wanted import wanted_objects
from actor.rules.rulefile import parse
from actor.settings import Settings

SURE = 'min_probability = 0.9\notherwise = "people"\n'


def test_an_actor_of_requests_alone_needs_nothing_but_its_requests() -> None:
    """No stream, no consumer; only that none takes what callers ask."""
    wanted = wanted_objects(Settings(srv_prefix="acme.SRV", subject_prefix="acme"), ())

    assert wanted.streams == ()
    assert wanted.consumers == ()
    assert wanted.requests == ("acme.score", "acme.score_shared", "acme.status", "acme.SRV.>")


def test_jobs_need_three_streams_and_a_consumer() -> None:
    """Under the names, times and sizes of the settings."""
    settings = Settings(
        jobs=True,
        subject_prefix="acme",
        jobs_stream="J",
        results_stream="R",
        dead_stream="D",
        jobs_durable="c",
        ack_wait_s=1.5,
        dedup_s=600,
        request_bytes_max=100_000,
        queue_jobs_max=10,
    )

    wanted = wanted_objects(settings, ())

    assert [(own.name, own.subject, own.retention) for own in wanted.own] == [
        ("J", "acme.jobs.>", "workqueue"),
        ("R", "acme.results.>", "limits"),
        ("D", "acme.dead.>", "limits"),
    ]
    assert {own.dedup_ns for own in wanted.own} == {600_000_000_000}
    assert {own.message_bytes_max for own in wanted.own} == {116_384}
    [consumer] = wanted.consumers
    assert (consumer.stream, consumer.durable, consumer.subject) == ("J", "c", "acme.jobs.>")
    assert (consumer.ack_wait_ns, consumer.ack_pending_min) == (1_500_000_000, 10)
    assert consumer.ack_pending == 640  # 64 actors


def test_rules_need_their_streams_and_one_for_dead_letters() -> None:
    """A core subject needs none; two sinks into one stream need it once."""
    sinks = '[[rules.sinks]]\nsubject = "a"\nstream = "S"\n[[rules.sinks]]\nsubject = "b"\n'
    again = '[[rules.sinks]]\nsubject = "c"\nstream = "S"\n'
    source = '{ subject = "in.>", stream = "IN", durable = "d" }'
    text = rule_text(name="core", sinks=sinks) + rule_text(
        name="stored", source=source, sinks=again
    )

    wanted = wanted_objects(Settings(), parse(text, "rules.toml", prefix="semif.v1"))

    assert wanted.streams == ("SEMIF_DEAD", "IN", "S")
    assert [(s.name, s.rule, s.subject) for s in wanted.sources] == [("IN", "stored", "in.>")]
    assert [(c.stream, c.durable, c.subject) for c in wanted.consumers] == [("IN", "d", "in.>")]
    assert [(s.rule, s.subjects) for s in wanted.sinks] == [("core", ("a",)), ("stored", ("c",))]


@pytest.mark.parametrize(
    ("subject", "when", "questions", "expected"),
    [
        ("out.{rule}", "always", TOPIC, {"out.r"}),
        ("out.{choice}", "always", TOPIC, {"out.billing", "out.other"}),
        ("out.{choice}", "always", TOPIC + SURE, {"out.billing", "out.other", "out.people"}),
        ("out.{choice}", "sure", TOPIC + SURE, {"out.billing", "out.other"}),
        ("out.{choice}", "unsure", TOPIC + SURE, {"out.people"}),
        ("out.{choice:topic}", "unsure", TOPIC + SURE, {"out.people"}),
        (
            "{choice:topic}.{choice:urgency}",
            "unsure",
            TOPIC + SURE + URGENCY,
            {f"{a}.{b}" for a in ("billing", "other", "people") for b in ("now", "later")},
        ),
        ("out.x-{choice:urgency}", "always", TOPIC + URGENCY, {"out.x-now", "out.x-later"}),
        ("out.{event:/a.b}-{subject:2}.c", "always", TOPIC, {"out.*.c"}),
        ("out.{subject}.c", "always", TOPIC, {"out.>.c"}),
        ("out.{choice}.{event:/id}", "always", TOPIC, {"out.billing.*", "out.other.*"}),
    ],
)
def test_a_sink_needs_every_subject_that_its_template_can_give(
    subject: str, when: str, questions: str, expected: set[str]
) -> None:
    """Choices by name; what only an event tells, as a wildcard."""
    sinks = f'[[rules.sinks]]\nsubject = "{subject}"\nstream = "S"\nwhen = "{when}"\n'

    [sink] = wanted_objects(Settings(), (rule(questions=questions, sinks=sinks),)).sinks

    assert set(sink.subjects) == expected


def test_many_questions_do_not_make_more_subjects_than_can_be_looked_at() -> None:
    """Sixteen options each of as many questions as fit a subject: the work stays bounded."""
    options = ", ".join(f'{{id = "o{i}", description = "d{i}"}}' for i in range(16))
    questions = "".join(
        f'[[rules.questions]]\nid = "q{i}"\nquestion = "?"\noptions = [{options}]\n'
        for i in range(9)
    )
    subject = ".".join(f"{{choice:q{i}}}" for i in range(9))
    sinks = f'[[rules.sinks]]\nsubject = "{subject}"\nstream = "S"\n'

    [sink] = wanted_objects(Settings(), (rule(questions=questions, sinks=sinks),)).sinks

    assert len(sink.subjects) == 4096


def test_the_example_of_the_operations_files_can_be_planned() -> None:
    """Every rule in it, whatever it shows."""
    example = Path(__file__).parents[3] / "ops" / "rules.example.toml"
    text = example.read_text(encoding="utf-8")

    wanted = wanted_objects(Settings(), parse(text, "rules.toml", prefix="semif.v1"))

    assert "ORDERS" in wanted.streams
