"""``semif-actor rules``: every mistake told, and what would become of an event shown."""

from __future__ import annotations

import io
from pathlib import Path

import nats
import pytest
from in_process import actor_in_process
from rule_samples import TOPIC, URGENCY, rule_text
from typer.testing import CliRunner

from actor.bus.embedded import EmbeddedServer
from actor.cli.app import app
from actor.cli.rule_trial import Trial, try_event
from actor.cli.show import console
from actor.rules.rulefile import parse
from actor.settings import Settings

NOWHERE = "nats://127.0.0.1:1"
SORTED = '[[rules.sinks]]\nsubject = "out.{choice}"\n'
UNSURE = TOPIC + 'min_probability = 0.9\notherwise = "people"\n'


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Give what the console prints, wide enough for any line."""
    file = io.StringIO()
    monkeypatch.setattr(console, "_file", file)
    monkeypatch.setattr(console, "_width", 300)
    return file


def run(*arguments: str | Path, stdin: bytes | None = None) -> int:
    return CliRunner().invoke(app, [str(each) for each in arguments], input=stdin).exit_code


def write(folder: Path, text: str) -> Path:
    file = folder / "rules.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_example_is_shown_rule_by_rule(printed: io.StringIO) -> None:
    """What each reads, asks and publishes, whole: a subject cut short would be another."""
    example = Path(__file__).parents[2] / "ops" / "rules.example.toml"

    assert run("rules", "check", example) == 0

    text = printed.getvalue()
    for shown in (
        *("tickets.new", "core, queue group log-triage", "stream ORDERS, durable semif-orders"),
        *("fraud", "urgency", "decisions.orders.{subject:2}.{event:/order/id}"),
        "(decision, DECISIONS)",
    ):
        assert shown in text


def test_every_mistake_is_told_at_once(printed: io.StringIO, tmp_path: Path) -> None:
    """One line each, with file, rule and field; exit 2, as for settings."""
    bad = rule_text(name="a", sinks='[[rules.sinks]]\nsubject = "x.{no}"\n')
    file = write(tmp_path, bad + rule_text(name="b", source='{ subject = ">" }'))

    assert run("rules", "check", file) == 2

    lines = printed.getvalue().splitlines()
    assert [line.startswith(f"{file}: ") for line in lines] == [True, True]
    assert 'rule "a": sinks[0].subject' in lines[0]
    assert 'rule "b": source.subject' in lines[1]


def test_a_file_that_is_not_there_is_told(printed: io.StringIO, tmp_path: Path) -> None:
    """No traceback."""
    assert run("rules", "check", tmp_path / "none.toml") == 2
    assert "cannot be read" in printed.getvalue()


def test_an_event_is_tried_without_an_actor(printed: io.StringIO, tmp_path: Path) -> None:
    """What would be asked, and where each choice would go; that nobody decided is said."""
    file = write(tmp_path, rule_text(questions=UNSURE, sinks=SORTED))

    assert run("rules", "try", file, "--event", "-", "--server", NOWHERE, stdin=b'{"n": 1}') == 0

    text = printed.getvalue()
    assert '"state":{"n":1}' in text
    assert "no decision: no connection to NATS" in text
    for choice in ("billing", "other", "people"):
        assert f"published if topic is {choice}: out.{choice}" in text


def test_only_choices_that_a_subject_names_are_told_apart(
    printed: io.StringIO, tmp_path: Path
) -> None:
    """Two questions with two options each, and one of them in the template: two subjects."""
    sinks = '[[rules.sinks]]\nsubject = "out.{choice:urgency}"\nwhen = "always"\n'
    file = write(tmp_path, rule_text(questions=TOPIC + URGENCY, sinks=sinks))

    assert run("rules", "try", file, "--event", "-", "--server", NOWHERE, stdin=b'{"n": 1}') == 0

    assert printed.getvalue().count("published if") == 2


@pytest.mark.parametrize(
    ("event", "options", "code", "shown"),
    [
        (b"{", (), 1, "not_json"),
        (b'{"n": 1}', ("--header", "Semif-Hops=3"), 1, "loop"),
        (b'{"n": 1}', ("--header", "nothing"), 2, "--header"),
        (b'{"n": 1}', ("--rule", "other"), 2, 'no rule "other"; there are: r.'),
        (b'{"n": 1}', ("--subject", "in.a b"), 1, "bad_subject"),
    ],
)
def test_what_stops_an_event_is_shown(
    event: bytes,
    options: tuple[str, ...],
    code: int,
    shown: str,
    *,
    printed: io.StringIO,
    tmp_path: Path,
) -> None:
    """The outcome by its code, with rule and field; or what is wrong with the command."""
    sinks = '[[rules.sinks]]\nsubject = "out.{subject:2}"\n'
    file = write(tmp_path, rule_text(sinks=sinks))

    found = run("rules", "try", file, "--event", "-", "--server", NOWHERE, *options, stdin=event)

    assert (found, shown in printed.getvalue()) == (code, True), printed.getvalue()


async def test_an_event_is_tried_with_a_real_decision(
    printed: io.StringIO, server: EmbeddedServer
) -> None:
    """By whichever actor is ready; subject, headers and payload are shown, nothing is published."""
    rules = parse(rule_text(questions=UNSURE, sinks=SORTED), "rules.toml", prefix="semif.v1")
    settings = Settings(nats_url=server.url, instance="test")
    watcher = await nats.connect(server.url)
    published = await watcher.subscribe("out.>")

    async with actor_in_process(settings, watcher):
        trial = Trial(rules, b'{"n": 1}', {"x-tenant": "7"}, None)
        code = await try_event(settings, trial, timeout_s=10)
    unseen = published.pending_msgs
    await watcher.close()

    text = printed.getvalue()
    assert (code, unseen) == (0, 0), text
    # An engine that finds all options equally likely: never sure, the first is the choice.
    for shown in (
        *("outcome: otherwise", "published: out.people", "x-tenant: 7", "Semif-Choice: billing"),
        *("Semif-Probability: 0.500000", "Semif-Sure: false", 'payload: {"n": 1}'),
    ):
        assert shown in text, text
