"""``semif-actor stream``: what a person sees, and the exit codes that a script acts on."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_samples import RULES_TEXT
from typer.testing import CliRunner

from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.cli.app import app
from actor.cli.show import console


@pytest.fixture
def storing(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """Give a server with JetStream."""
    with embedded_server(tmp_path, jetstream=True) as running:
        yield running


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, **settings: str) -> tuple[int, str]:
    """Run a command; gives its exit code and what it printed."""
    file = io.StringIO()
    monkeypatch.setattr(console, "_file", file)
    monkeypatch.setattr(console, "_width", 300)
    done = CliRunner().invoke(app, arguments, env={f"SEMIF_{k}": v for k, v in settings.items()})
    return done.exit_code, file.getvalue()


def test_plan_shows_and_apply_makes(
    storing: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 1 while something is to do, 0 when nothing is; plan changes nothing."""
    settings = {"NATS_URL": storing.url, "JOBS": "true"}
    twice = [run(monkeypatch, "stream", "plan", **settings) for _ in range(2)]
    applied = run(monkeypatch, "stream", "apply", **settings)
    after = run(monkeypatch, "stream", "plan", **settings)

    assert twice[0] == twice[1]
    assert twice[0][0] == 1
    for name in ("SEMIF_JOBS", "SEMIF_RESULTS", "SEMIF_DEAD"):
        [line] = [line for line in twice[0][1].splitlines() if line.startswith(f"stream {name}")]
        assert line.split()[-1] == "make"
        assert f"stream {name}: made\n" in applied[1]
    assert applied[0] == 0
    assert after[0] == 0
    assert after[1].count("nothing") == 4


def test_what_is_for_a_person_to_do_is_shown(
    storing: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own streams; apply makes the rest and says by its exit code that some is left."""
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES_TEXT, encoding="utf-8")
    settings = {"NATS_URL": storing.url, "RULES": str(rules)}

    code, printed = run(monkeypatch, "stream", "apply", **settings)

    assert code == 1
    assert "stream SEMIF_DEAD: made\n" in printed
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert 'stream ORDERS read by rule "sort" by hand' in lines
    assert 'make it by hand missing for rule "sort"' in lines
    assert 'make its stream first missing for rule "sort"' in lines


def test_nothing_is_needed_without_jobs_and_rules(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is JetStream."""
    assert run(monkeypatch, "stream", "plan", NATS_URL=server.url) == (
        0,
        "nothing is needed: neither jobs nor rules are on\n",
    )


def test_what_cannot_be_looked_at_is_told(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No JetStream and no server end with 1; a rule file with mistakes with 2."""
    rules = tmp_path / "rules.toml"
    rules.write_text("x = 1\n", encoding="utf-8")

    missing = run(monkeypatch, "stream", "apply", NATS_URL=server.url, JOBS="true")
    nowhere = run(monkeypatch, "stream", "plan", NATS_URL="nats://127.0.0.1:1", JOBS="true")
    mistaken = run(monkeypatch, "stream", "plan", NATS_URL=server.url, RULES=str(rules))

    assert missing[0] == nowhere[0] == 1
    assert missing[1].startswith("stream: there is no JetStream here")
    assert nowhere[1].startswith("stream: no connection to NATS")
    assert mistaken[0] == 2
    assert mistaken[1].startswith(str(rules))
