"""The bench: statistics worked out by hand, how records look, what is asked, and real runs."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import nats
import pytest
from nats.aio.msg import Msg
from rich.console import Console
from streams import jetstream_server

from actor.bus.client import open_client
from actor.bus.embedded import EmbeddedServer
from actor.cli.bench import bus, overload, pipeline
from actor.cli.bench.baseline import tokens_behind_common
from actor.cli.bench.command import environment_of
from actor.cli.bench.context import Bench
from actor.cli.bench.processes import INSTANT, running_actor
from actor.cli.bench.records import BenchFailed, Figure, Record, compared, observed, percentile
from actor.cli.bench.report import table_of, write_line
from actor.cli.bench.traffic import Traffic, rate, traffic_to
from actor.cli.bench.workload import (
    QUESTIONS,
    score_body,
    shared_body,
    short_rows,
    state_of,
    state_rows,
)
from actor.rules.rulefile import parse
from actor.settings import Settings, load
from schemas.codec import codec_for
from schemas.decision import Decision, ScoreRequest, SharedRequest
from schemas.validation import check_decision, check_ids, check_state


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5.0], 0.5, 5.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([4.0, 1.0, 3.0, 2.0], 0.51, 3.0),
        (list(range(1, 201)), 0.99, 198),
        ([1.0, 2.0], 1.0, 2.0),
        ([1.0, 2.0], 0.0, 1.0),
    ],
)
def test_a_percentile_is_a_value_that_was_measured(
    values: Sequence[float], share: float, expected: float
) -> None:
    """Nearest rank: so many of the values are not above it; nothing is interpolated."""
    assert percentile(values, share) == expected


def test_a_percentile_of_nothing_reaches_no_figure() -> None:
    """Where nothing was measured there is no number, and none that could pass for one."""
    found = observed("m", "w", "ms", percentile([], 0.99), figure=Figure(at_most=50))

    assert math.isnan(found.value)
    assert found.reached is False


@pytest.mark.parametrize(
    ("by", "value"),
    [("speedup", 4.0), ("share", 0.25), ("added", -15.0)],
)
def test_a_comparison_is_the_median_of_the_rounds(
    by: Literal["speedup", "share", "added"], value: float
) -> None:
    """Each round is compared by itself: one slow round on both sides moves nothing."""
    rounds = [(5.0, 20.0), (50.0, 200.0), (4.0, 12.0)]

    found = compared("m", "w", "ms", rounds, by=by)

    assert found.value == value
    assert (found.ours, found.baseline) == (5.0, 20.0)
    assert found.reached is None


@pytest.mark.parametrize(
    ("figure", "reached"),
    [
        (Figure(at_least=2.0), True),
        (Figure(at_least=2.001), False),
        (Figure(at_most=2.0), True),
        (Figure(at_most=1.999), False),
        (Figure(at_least=2.0, at_most=2.0), True),
        (Figure(at_least=1.0, at_most=1.0), False),
    ],
)
def test_a_figure_is_reached_at_its_limit(figure: Figure, reached: bool) -> None:
    """A figure's "at least" and "at most" include the number they name."""
    assert compared("m", "w", "s", [(1.0, 2.0)], by="speedup", figure=figure).reached is reached


BATCHES = [t + ms / 1000 for t in (1.0, 4.0, 7.0, 10.0) for ms in range(3)]
"""Three results every three seconds: one a second."""


@pytest.mark.parametrize(
    ("times_s", "start_s", "end_s", "expected"),
    [
        (BATCHES, 0.0, 6.5, 1.0),
        (BATCHES, 0.0, 7.5, 1.0),
        (BATCHES, 2.0, 9.9, 1.0),
        (BATCHES[::-1], 0.0, 6.5, 1.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 4.0, 1.0),
        ([1.0, 1.0], 0.0, 5.0, 0.5),
        ([9.0], 0.0, 5.0, 0.0),
        ([], 0.0, 5.0, 0.0),
    ],
    ids=["batches", "one more", "inner ones", "any order", "one by one", "a stop", "later", "none"],
)
def test_a_rate_does_not_cut_a_batch(
    times_s: list[float], start_s: float, end_s: float, expected: float
) -> None:
    """Wherever the ends lie between batches, the rate is the same; silence at the end counts."""
    assert rate(times_s, start_s, end_s) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([[1, 2, 3], [1, 2, 4, 5], [1, 2, 9]], 4),
        ([[1], [2, 2]], 3),
        ([[7, 7], [7, 7]], 0),
        ([[3, 1, 9], [3, 1], [3, 1, 0]], 2),
    ],
)
def test_unique_tokens_are_those_behind_the_common_head(
    prompts: list[list[int]], expected: int
) -> None:
    """What all prompts begin with is computed once for ever, and counts for none."""
    assert tokens_behind_common(prompts) == expected


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "measurement": "shared",
        "what": "[20] words",
        "unit": "ms",
        "ours": 1234.5,
        "baseline": 1999.4,
        "by": "speedup",
        "value": 1.62,
        "figure": Figure(at_least=1.2),
        "reached": True,
    }
    return Record(**fields | changes)


def shown(*records: Record) -> str:
    file = io.StringIO()
    Console(file=file, width=160).print(table_of(records))
    return file.getvalue()


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        ({}, ["shared: [20] words", "1,234 ms", "1,999 ms", "1.62x", ">= 1.2x", "reached"]),
        (
            {"by": "added", "value": 0.318, "figure": Figure(at_most=0.4), "ours": 0.471},
            ["0.471 ms", "+0.318 ms", "<= 0.4 ms", "reached"],
        ),
        ({"by": "ours", "baseline": None, "reached": False}, ["1,234 ms", ">= 1.2 ms", "missed"]),
        ({"figure": Figure(at_least=1.0, at_most=1.0)}, ["= 1x"]),
        ({"note": "[/] scaled"}, ["[/] scaled"]),
    ],
    ids=["a ratio", "a difference", "no baseline", "exactly", "a note"],
)
def test_a_record_is_a_row(changes: dict[str, Any], cells: list[str]) -> None:
    """What was measured, both sides, the ratio, the figure and the verdict; text is no markup."""
    text = shown(record(**changes))

    for cell in cells:
        assert cell in text


def test_a_record_without_a_figure_has_no_verdict() -> None:
    """Printed for information: neither reached nor missed."""
    text = shown(record(figure=None, reached=None))

    assert "reached" not in text
    assert "missed" not in text


def test_a_record_is_one_line_of_json() -> None:
    """A program finds every number, the verdict and the rounds; what is absent is left out."""
    file = io.StringIO()
    write_line(record(baseline=None, note="a\nb", rounds=((1.5, 3.0),)), file)
    write_line(record(), file)

    first, second = map(json.loads, file.getvalue().splitlines())
    assert first["figure"] == {"at_least": 1.2}
    assert first["rounds"] == [[1.5, 3.0]]
    assert first["reached"] is True
    assert "baseline" not in first
    assert second["baseline"] == 1999.4


@pytest.mark.parametrize("words", [12, 20, 200, 800, 2000])
def test_a_state_has_as_many_words_as_asked(words: int) -> None:
    """The same for the same seed, another for another; no mark at its end."""
    state = state_of(words, 1)

    assert len(state.split(" ")) == words
    assert state == state_of(words, 1) != state_of(words, 2)
    assert state.replace(" ", "").isalpha()


def test_there_are_21_different_questions() -> None:
    """The number that the figures are about, with two or three options each."""
    assert len(set(QUESTIONS)) == 21
    assert {len(options) for _, options in QUESTIONS} == {2, 3}


def test_short_rows_are_all_different_decisions_that_the_contract_takes() -> None:
    """64 states of 12 words, no two alike, two options, valid as requests."""
    rows = short_rows(64, 5)
    requests = [codec_for(None).decode(score_body(row), ScoreRequest) for row in rows]

    assert len({row["state"] for row in rows}) == 64
    assert {len(row["state"].split()) for row in rows} == {12}
    for request in requests:
        check_state(request.state)
        check_decision(Decision(id=request.id, question=request.question, options=request.options))
        assert len(request.options) == 2


def test_a_shared_body_holds_every_row_over_its_state() -> None:
    """The same decisions as SemIf's rows, the state once, valid as a request."""
    rows = state_rows(state_of(20, 3))
    request = codec_for(None).decode(shared_body(rows), SharedRequest)

    check_ids([decision.id or "" for decision in request.decisions])
    for decision, row in zip(request.decisions, rows, strict=True):
        check_decision(decision)
        assert json.loads(msgspec.json.encode(decision)) | {"state": request.state} == row


def test_the_actors_get_the_callers_settings_but_our_server() -> None:
    """What is measured is what is set; a server or credentials of the caller's are not touched."""
    found = environment_of(
        {"SEMIF_SCORER": "reference", "SEMIF_NATS_CREDS": "/secret", "HOME": "/root"},
        Path("/models/m"),
        "nats://127.0.0.1:1",
    )

    assert found["SEMIF_SCORER"] == "reference"
    assert found["HOME"] == "/root"
    assert found["SEMIF_NATS_URL"] == "nats://127.0.0.1:1"
    assert found["SEMIF_MODEL"] == "/models/m"
    assert found["SEMIF_DEVICE"] == "cpu"
    assert "SEMIF_NATS_CREDS" not in found


@asynccontextmanager
async def answering(server: EmbeddedServer, answers: Sequence[int]) -> AsyncIterator[None]:
    """Answer each message on ``s`` as often as its turn in ``answers`` says."""
    client = await nats.connect(server.url)
    turns = itertools.cycle(answers)

    async def on_message(message: Msg) -> None:
        for _ in range(next(turns)):
            await client.publish(message.reply, message.data)

    await client.subscribe("s", cb=on_message)
    await client.flush()
    await client.flush()
    try:
        yield
    finally:
        await client.close()


async def sent_and_settled(server: EmbeddedServer, answers: Sequence[int]) -> Traffic:
    async with answering(server, answers), traffic_to(server.url, "s", [b"x"]) as traffic:
        await traffic.one_at_a_time(6, within_s=0.2)
        return traffic


async def test_a_lost_reply_is_counted(server: EmbeddedServer) -> None:
    """A request that nobody answered is told from one that was."""
    traffic = await sent_and_settled(server, [1, 0, 1])

    assert len(traffic.sent_s) == 6
    assert traffic.unanswered == 2
    assert traffic.statuses() == {200: 4}


async def test_a_second_reply_is_counted(server: EmbeddedServer) -> None:
    """More replies than requests, although each request has one."""
    async with answering(server, [2]), traffic_to(server.url, "s", [b"x"]) as traffic:
        await traffic.one_at_a_time(6, within_s=5)

    # Each pair comes before the first reply to the next request.
    assert traffic.replies >= 11
    assert traffic.unanswered == 0
    assert len(traffic.latencies_s(200)) == 6


async def test_nobody_there_is_an_error_and_no_answer(server: EmbeddedServer) -> None:
    """The server's own "no responders" is never taken for a result."""
    async with traffic_to(server.url, "nobody", [b"x"]) as traffic:
        start_s, end_s = await traffic.closed_loop(in_flight=2, seconds=0.1)
        await traffic.settle(within_s=5)

    assert set(traffic.statuses()) == {503}
    assert traffic.answered_per_s(start_s, end_s) == 0


@asynccontextmanager
async def bench_on(
    server: EmbeddedServer, folder: Path, settings: dict[str, str] | None = None
) -> AsyncIterator[Bench]:
    environment = environment_of(os.environ | (settings or {}), Path("none"), server.url)
    found, _ = load(None, environment)
    async with open_client(Settings(nats_url=server.url), "test") as client:
        yield Bench(
            url=server.url,
            client=client,
            settings=found,
            environment=environment,
            folder=folder,
            rounds=1,
            overload_s=1.0,
            tell=lambda _: None,
        )


async def test_the_bus_is_measured_against_a_bare_responder(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """Both real processes answer; a number for each side, and the two figures of the design."""
    async with bench_on(server, tmp_path) as bench:
        throughput, latency = await bus.measure(bench, loop_s=0.2, alone=5)

    assert throughput.figure == Figure(at_least=0.5)
    assert latency.figure == Figure(at_most=0.4)
    for found in (throughput, latency):
        assert found.ours > 0
        assert found.baseline
        assert len(found.rounds) == 1


async def test_a_rule_is_measured_against_a_bare_loop(tmp_path: Path) -> None:
    """The real processes read a real stream to its end; a rate for each, and the two figures."""
    with jetstream_server(tmp_path / "js") as server:
        async with bench_on(server, tmp_path) as bench:
            rate, share, together = await pipeline.measure_instant(bench, count=3000)

    assert rate.figure == Figure(at_least=3000)
    assert share.figure == Figure(at_least=0.6)
    assert together.figure is None
    for found in (share, together):
        assert found.ours > 0
        assert (found.baseline or 0) > 0


def test_the_rules_that_are_measured_ask_what_the_requests_ask() -> None:
    """The short question of the one, all 21 of the other."""
    one, many = parse(pipeline.rules_text(), "rules.toml", prefix="semif.v1")

    assert [each.question.question for each in one.asking] == [short_rows(1, 0)[0]["question"]]
    assert [each.question.question for each in many.asking] == [text for text, _ in QUESTIONS]


async def test_under_overload_every_request_has_its_one_reply(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """The real server around a slow engine: most is refused, nothing is lost or answered twice."""
    settings = {"SEMIF_QUEUE_JOBS_MAX": "16", "SEMIF_BATCH_ROWS_MAX": "8"}
    async with (
        bench_on(server, tmp_path, settings) as bench,
        running_actor(bench.client, bench.environment, tmp_path / "actor.log", (*INSTANT, "0.05")),
    ):
        goodput, refusals, replies = await overload.measure(bench)

    assert goodput.ours > 0
    assert refusals.ours > 0
    assert replies.invariant
    assert replies.reached, replies.note
    assert replies.ours == replies.baseline


async def test_an_actor_that_does_not_start_ends_the_measurement(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """The reason is the actor's own log, not a time that ran out."""
    async with bench_on(server, tmp_path) as bench:
        environment = dict(bench.environment) | {"SEMIF_DEVICE": "abacus"}
        with pytest.raises(BenchFailed, match=r"exit 2(.|\n)*device"):
            async with running_actor(bench.client, environment, tmp_path / "actor.log"):
                raise AssertionError("it started")


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "actor", "bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_prints_json_lines_alone(tmp_path: Path) -> None:
    """``--json -``: standard output is for the program that reads it, the table is beside it."""
    done = run_bench("--model", str(tmp_path), "--only", "bus", "--rounds", "1", "--json", "-")

    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["unit"] for line in done.stdout.splitlines()] == ["requests/s", "ms"]
    assert "p50, one at a time" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--only", "bus,speed"], ["--model", "no/such/folder"], ["--only", ""]],
    ids=["unknown measurement", "no model", "nothing"],
)
def test_what_cannot_be_measured_is_refused_at_once(arguments: list[str]) -> None:
    """A typo costs a second, not the ten minutes of a run."""
    done = run_bench(*arguments)

    assert done.returncode == 2
    assert done.stdout.startswith("bench: no m")
