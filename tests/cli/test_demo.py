"""The demo: what it prints fits and can be pasted; whatever stops it, nothing goes on running."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import nats
import psutil
import pytest
from in_process import actor_in_process
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from streams import jetstream_server

from actor.bus.client import open_client
from actor.bus.embedded import EmbeddedServer
from actor.cli.demo import _add_row, _table, commands_for
from actor.cli.demo_events import BROKEN, EVENTS, RULES, make_objects, route_events, table_of
from actor.cli.samples import CONTROL_TEXT, SAMPLES, SHARED
from actor.rules.outcomes import OUTCOMES
from actor.settings import Settings
from schemas.decision import ScoreReply
from schemas.errors import ErrorBody
from schemas.examples import EXAMPLES

START_TIMEOUT_S = 60.0


def running_with(folder: Path) -> list[str]:
    """Give the names of the processes whose temporary files go into ``folder``."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder):
                found.append(process.name())
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


async def test_a_demo_that_is_told_to_stop_leaves_no_process_behind(
    demo_model: Path, tmp_path: Path
) -> None:
    """SIGTERM ends its server and its actor too, with the code that a shell would give."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "actor", "demo", "--model", str(demo_model)),
        env=environment | {"PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            url = (await process.stdout.readline()).decode().split()[-1]
            client = await nats.connect(url, allow_reconnect=False)
            beats = await client.subscribe("semif.v1.health.demo")
            await beats.next_msg(timeout=START_TIMEOUT_S)  # the actor proves, for seconds to come
        assert len(running_with(tmp_path)) == 3
        await client.close()

        process.terminate()
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert process.returncode == 128 + 15, output
    assert b"Traceback" not in output
    assert running_with(tmp_path) == []


def certain(option_ids: list[str]) -> ScoreReply:
    """Give an answer of the widest figures: the first option is certain, and it took a minute."""
    reply = EXAMPLES["score_reply"][""]
    assert isinstance(reply, ScoreReply)
    return msgspec.structs.replace(
        reply,
        option_ids=tuple(option_ids),
        probabilities=(1.0, *[0.0] * (len(option_ids) - 1)),
        choice=option_ids[0],
        timing=msgspec.structs.replace(reply.timing, total_ms=60_000.0),
    )


def test_the_table_is_whole_at_80_columns() -> None:
    """The width of a pipe: every border, every percentage and every duration can be read."""
    decisions = [(s.title, s.question, list(s.options)) for s in (*SAMPLES, CONTROL_TEXT)]
    decisions += [
        (asked["id"], "shared", [option["id"] for option in asked["options"]])
        for asked in msgspec.to_builtins(SHARED)["decisions"]
    ]
    table = _table()
    for title, question, option_ids in decisions:
        answer = certain(option_ids)
        _add_row(table, title, question, answer, answer.timing)
    message = "The actor cannot take more work now. " * 3
    error = ErrorBody(code="overloaded", status=429, message=message, retryable=True)
    _add_row(table, "t " * 40, "q" * 100, error)
    console = Console(file=io.StringIO(), width=80)

    console.print(table)

    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert {cell_len(line) for line in lines} == {cell_len(lines[0])}
    assert cell_len(lines[0]) <= 80
    assert {line[-1] for line in lines} == set("\u2513\u2503\u2529\u2502\u2524\u2518")
    text = "\n".join(lines)
    assert text.count(" 100.0% ") == text.count(" 60000 ") == len(decisions)
    assert text.count(" 0.0% ") == sum(len(ids) - 1 for _, _, ids in decisions)
    assert text.count("\u2588" * 16) == len(decisions)


def test_the_table_of_events_is_whole_at_80_columns() -> None:
    """With the longest names that the rule and the table of outcomes can give."""
    longest = {"Semif-Dead-Code": max((each.code for each in OUTCOMES), key=len)}
    decided = {"Semif-Choice": "en", "Semif-Probability": "1.000000"}
    decided_row = ("mail.sorted.people", decided)
    rows: dict[str, tuple[str, dict[str, str]]] = dict.fromkeys(EVENTS, decided_row)
    rows[BROKEN] = ("semif.v1.dead.rules.mail", longest)
    console = Console(file=io.StringIO(), width=80)

    console.print(table_of(rows))

    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert {cell_len(line) for line in lines} == {cell_len(lines[0])}
    assert cell_len(lines[0]) <= 80
    text = "\n".join(lines)
    assert text.count(" 100% ") == text.count(" mail.sorted.people ") == len(EVENTS) - 1
    assert (" semif.v1.dead.rules.mail " in text, longest["Semif-Dead-Code"] in text) == (
        True,
        True,
    )


async def test_the_events_are_routed_by_the_rule_file_of_the_package(tmp_path: Path) -> None:
    """As in the demo, by an engine that is never sure: all to people, the broken one is kept."""
    with jetstream_server(tmp_path / "js") as server:
        settings = Settings(nats_url=server.url, instance="demo", rules=RULES)
        watcher = await nats.connect(server.url)
        async with open_client(settings, "test") as client:
            await make_objects(client, settings)
            async with actor_in_process(settings, watcher):
                table = await route_events(client)
        await watcher.close()

    assert list(table.columns[1].cells) == [
        *[Text("mail.sorted.people")] * (len(EVENTS) - 1),
        Text("semif.v1.dead.rules.mail"),
    ]


@pytest.mark.parametrize("started_as", ["semif-actor", "module"])
def test_the_command_to_paste_runs_in_any_folder(
    started_as: str, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As printed, in a shell outside the virtual environment; only the actor is missing here."""
    command = Path(sys.executable).with_name("semif-actor")
    argv = os.path.relpath(command) if started_as == "semif-actor" else "actor/__main__.py"
    monkeypatch.setattr(sys, "argv", [argv, "demo", "--stay"])

    done = subprocess.run(
        ["sh", "-c", commands_for(server.url)[0]],
        env={"PATH": os.defpath},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, "no actor is ready" in done.stdout) == (1, True), done


def test_commands_to_paste_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a blank and a quote in its name; a body of JSON."""
    monkeypatch.setattr(sys, "argv", ["/a b/it's/semif-actor", "demo"])

    ours, nats_line = commands_for("nats://127.0.0.1:1")

    assert shlex.split(ours)[:4] == [
        "/a b/it's/semif-actor",
        "score",
        "--server",
        "nats://127.0.0.1:1",
    ]
    *words, body = shlex.split(nats_line)
    assert words == ["nats", "--server", "nats://127.0.0.1:1", "request", "semif.v1.score"]
    assert json.loads(body) == SAMPLES[1].request()
