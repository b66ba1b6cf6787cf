"""Rules in a whole actor: what becomes of good events and of bad ones, from either source."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from in_process import QuickEngine
from nats.aio.msg import Msg
from rule_samples import rule_text
from rules_actor import publish_raw, rules_actor, until
from streams import GatedEngine, jetstream_server, until_entered
from structlog.testing import capture_logs

from actor.bus.embedded import EmbeddedServer
from actor.engine.base import Outcome, Prepared, Work
from actor.service import Exit, serve
from actor.settings import Settings
from schemas.errors import ControlText, OutOfMemory

Kind = Literal["core", "stream"]

REQUEST_BYTES_MAX = 1_048_400
"""Just under the server's limit: an event may fit that does not with the headers of a decision."""
BIG = b'"' + b"a" * (REQUEST_BYTES_MAX - 10) + b'"'
UNSURE = """
[[rules.questions]]
id = "topic"
question = "What is it about?"
options = [{id = "billing", description = "Money."}, {id = "other", description = "Not money."}]
min_probability = 0.9
otherwise = "people"
"""
NOT_SURE = '[[rules.sinks]]\nsubject = "out.{rule}.{choice}"\n'
ONLY_SURE = '[[rules.sinks]]\nsubject = "out.{rule}"\nwhen = "sure"\n'
BY_FIELD = '[[rules.sinks]]\nsubject = "out.{event:/id}"\n'
TO_STREAM = '[[rules.sinks]]\nsubject = "gone.{rule}"\nstream = "GONE"\n'


@pytest.fixture
def js_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with jetstream_server(tmp_path / "js") as running:
        yield running


class MoodyEngine(QuickEngine):
    """Refuses states that say so."""

    def prepare(self, work: Work) -> Prepared:
        if work.state == {"mood": "never"}:
            raise ControlText
        if work.state == {"mood": "later"}:
            raise OutOfMemory
        return super().prepare(work)


@dataclass(frozen=True)
class Case:
    """An event of one rule, and what becomes of it."""

    rule: str
    payload: bytes
    code: str
    headers: dict[str, str] | None = None
    reason: str | None = None
    """What the reason names; None for what is no dead letter."""


PLAIN = "plain"
CASES = [
    Case(PLAIN, b'{"a": 1}', "published"),
    Case("unsure", b'{"a": 1}', "otherwise"),
    Case("fussy", b'{"a": 1}', "no_sink"),
    Case("skips", b'{"a": 1}', "missing_skipped"),
    Case(PLAIN, b"", "empty", reason="event"),
    Case(PLAIN, b" \r\n", "empty", reason="event"),
    Case(PLAIN, b'"' + b"a" * REQUEST_BYTES_MAX + b'"', "too_large", reason="event"),
    Case(PLAIN, b"[" * 70 + b"]" * 70, "too_deep", reason="state"),
    Case(PLAIN, b"\xff\xfe", "binary", reason="event"),
    Case("text", b"\xff\xfe", "binary", reason="event"),
    Case(PLAIN, b'{"a": ', "not_json", reason="event"),
    Case(PLAIN, b"[1e999]", "not_json", reason="event"),
    Case(PLAIN, b"{}", "bad_cloudevent", {"ce-specversion": "1.0"}, reason="id"),
    Case("points", b'{"a": 1}', "missing", reason="state"),
    Case("points", b'{"order": 7}', "bad_state", reason="state"),
    Case(PLAIN, b"{}", "bad_state", reason="state"),
    Case("field", b'{"id": "a b"}', "bad_subject", reason="sinks[0].subject"),
    Case("field", b'{"id": "*"}', "bad_subject", reason="sinks[0].subject"),
    Case("field", b'{"id": "a.b"}', "bad_subject", reason="sinks[0].subject"),
    Case("field", b'{"id": ""}', "bad_subject", reason="sinks[0].subject"),
    Case("field", b'{"no": "id"}', "bad_subject", reason="sinks[0].subject"),
    Case(PLAIN, b'{"a": 1}', "loop", {"Semif-Hops": "3"}, reason="Semif-Hops"),
    Case(PLAIN, b'{"a": 1}', "loop", {"semif-hops": "many"}, reason="Semif-Hops"),
    Case(PLAIN, b'{"mood": "never"}', "refused", reason="control_text"),
    Case(PLAIN, BIG, "oversize", reason="sinks"),
    Case(PLAIN, b'{"mood": "later"}', "retry", reason="out_of_memory"),
    Case("gone", b'{"a": 1}', "unpublished", reason="sinks"),
]
UNREADABLE = Case(PLAIN, b'{"a": 1}', "bad_headers", reason="event")


def source(rule: str, kind: Kind) -> str:
    stream = ', stream = "EVENTS"' if kind == "stream" else ""
    return f'{{ subject = "in.{rule}"{stream} }}'


def all_rules(kind: Kind) -> str:
    """Give a rule for each fault that a rule can have a part in."""
    return "".join(
        rule_text(keys, name=name, source=source(name, kind), **parts)
        for name, keys, parts in (
            (PLAIN, "", {}),
            ("unsure", "", {"questions": UNSURE, "sinks": NOT_SURE}),
            ("fussy", "", {"questions": UNSURE, "sinks": ONLY_SURE}),
            ("skips", 'state = "/order"\non_missing = "skip"', {}),
            ("points", 'state = "/order"', {}),
            ("text", 'format = "text"', {}),
            ("field", "", {"sinks": BY_FIELD}),
            ("gone", "", {"sinks": TO_STREAM}),
        )
    )


def final_code(case: Case, kind: Kind) -> str:
    """Give the last word: where there is one delivery only, a retry is the end of all tries."""
    retried = case.code in {"retry", "unpublished"}
    return "gave_up" if retried and kind == "stream" else case.code


def expected_counts(cases: Sequence[Case], kind: Kind) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for case in cases:
        codes = counts.setdefault(case.rule, {})
        code = final_code(case, kind)
        codes[code] = codes.get(code, 0) + 1
    return counts


@pytest.mark.parametrize("kind", ["core", "stream"])
async def test_every_outcome_is_counted_told_and_kept(
    kind: Kind, js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Each event has its one code in the counter, and each dead one a letter and a line in the log.

    The letter has the event's bytes, where it came from and why; the line has nothing of the event.
    """
    rules = tmp_path / "rules.toml"
    rules.write_text(all_rules(kind), encoding="utf-8")
    streams = {"GONE": ["gone.>"]} | ({"EVENTS": ["in.>"]} if kind == "stream" else {})
    cases = [*CASES, UNREADABLE]
    dead = [case for case in cases if case.reason is not None]
    with capture_logs() as lines:
        async with rules_actor(
            js_server,
            rules,
            MoodyEngine(),
            streams=streams,
            request_bytes_max=REQUEST_BYTES_MAX,
            deliveries_max=1,
        ) as actor:
            await actor.js.delete_stream("GONE")
            for case in CASES:
                await actor.client.publish(f"in.{case.rule}", case.payload, headers=case.headers)
            await actor.client.flush()
            await publish_raw(js_server.url, f"in.{PLAIN}", b"\xff" * 8, UNREADABLE.payload)
            await actor.until_settled(len(cases))
            letters = await actor.dead(len(dead))
            counts = actor.outcomes()

    assert {rule: codes for rule, codes in counts.items() if codes} == expected_counts(cases, kind)
    found = [
        (
            letter.subject,
            letter.headers["Semif-Dead-Code"],
            letter.headers["Semif-Dead-Subject"],
            letter.headers.get("Semif-Dead-Stream"),
            (letter.data or b"")[:64],
        )
        for letter in letters
        if letter.headers is not None
    ]
    stream = "EVENTS" if kind == "stream" else None
    assert sorted(found, key=repr) == sorted(
        (
            (
                f"semif.v1.dead.rules.{case.rule}",
                final_code(case, kind),
                f"in.{case.rule}",
                stream,
                case.payload[:64],
            )
            for case in dead
        ),
        key=repr,
    )
    told = [line for line in lines if line["event"] == "dead letter"]
    for case in dead:
        code = final_code(case, kind)
        assert any(
            line["code"] == code
            and f'rule "{case.rule}"' in line["reason"]
            and str(case.reason) in line["reason"]
            for line in told
        ), (case, told)
    assert len(told) == len(dead)
    assert not any("mood" in repr(line) or "aaaa" in repr(line) for line in lines)


@pytest.mark.parametrize("kind", ["core", "stream"])
async def test_an_event_goes_on_with_its_decision(
    kind: Kind, js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """To every sink of the rule: byte for byte to one, as the reply to another that is a stream."""
    sinks = """
[[rules.sinks]]
subject = "sorted.{choice}"
[[rules.sinks]]
subject = "kept.{rule}"
mode = "decision"
stream = "KEPT"
"""
    rules = tmp_path / "rules.toml"
    rules.write_text(rule_text(source=source("x", kind), sinks=sinks), encoding="utf-8")
    streams = {"KEPT": ["kept.>"]} | ({"EVENTS": ["in.>"]} if kind == "stream" else {})
    got: list[Msg] = []

    async def keep(message: Msg) -> None:
        got.append(message)

    async with rules_actor(js_server, rules, streams=streams) as actor:
        await actor.client.subscribe("sorted.>", cb=keep)
        await actor.client.flush()
        payload = b'{"a":  1}'
        await actor.client.publish("in.x", payload, headers={"x-tenant": "7", "Nats-Msg-Id": "e"})
        [kept] = await actor.stored("KEPT", 1)
        await until(lambda: bool(got))

    [message] = got
    assert (message.subject, message.data) == ("sorted.billing", payload)
    headers = message.headers or {}
    assert (headers["x-tenant"], headers["Semif-Choice"]) == ("7", "billing")
    assert headers["Semif-Probability"] == "0.500000"
    assert json.loads(kept.data or b"")["choice"] == "billing"
    assert kept.headers is not None
    name = kept.headers["Nats-Msg-Id"]
    assert name == "r.1.e" if kind == "core" else name.startswith("r.1.EVENTS.1.")


class CountingEngine(QuickEngine):
    """Keeps what it is asked, and waits before each batch until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Work]] = []
        self.gate = threading.Event()
        self.gate.set()

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        self.gate.wait()
        self.batches.append([each.work for each in batch])
        return super().score(batch)


async def test_many_questions_about_one_event_are_one_piece_of_work(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """21 questions share the event's state: they are asked as one score_shared would be."""
    questions = "".join(
        f'[[rules.questions]]\nid = "q{number}"\nquestion = "Is it {number}?"\n'
        'options = [{id = "y", description = "Yes."}, {id = "n", description = "No."}]\n'
        for number in range(21)
    )
    rules = tmp_path / "rules.toml"
    rules.write_text(rule_text(questions=questions), encoding="utf-8")
    engine = CountingEngine()

    async with rules_actor(js_server, rules, engine) as actor:
        await actor.client.publish("in.x", b'{"a": 1}')
        await actor.until_settled(1)

    [[work]] = engine.batches
    assert work.shared
    assert work.ids == tuple(f"q{number}" for number in range(21))


async def test_a_burst_of_core_events_waits_and_what_is_over_it_is_kept(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Eight times the queue is held; the rest are dead letters at once, and none is lost.

    Held events are decided before a stop: the drain waits for them.
    """
    rules = tmp_path / "rules.toml"
    rules.write_text(rule_text(), encoding="utf-8")
    engine = CountingEngine()
    engine.gate.clear()

    async with rules_actor(js_server, rules, engine, queue_jobs_max=2) as actor:
        for number in range(20):
            await actor.client.publish("in.x", b"[%d]" % number)
        letters = await actor.dead(4)
        engine.gate.set()
        beats = actor.beats

    # Numbers in brackets: the held ones are the first that came.
    assert sorted(letter.data or b"" for letter in letters) == [b"[%d]" % n for n in range(16, 20)]
    assert {(letter.headers or {})["Semif-Dead-Code"] for letter in letters} == {"retry"}
    pipeline = beats[-1].pipeline
    assert pipeline is not None
    assert pipeline.sources["r"].outcomes == {"published": 16, "retry": 4}


class SlowEngine(QuickEngine):
    """Takes a while for each batch."""

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        time.sleep(0.05)
        return super().score(batch)


async def test_a_drain_gives_back_what_has_not_started(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Of five events of a stream the model works on one; the rest is at once there for another."""
    rules = tmp_path / "rules.toml"
    rules.write_text(rule_text(source=source("*", "stream")), encoding="utf-8")
    engine = GatedEngine()
    engine.gate.clear()

    async with rules_actor(
        js_server, rules, engine, streams={"EVENTS": ["in.*"]}, batch_rows_max=1
    ) as actor:
        for number in range(5):
            await actor.js.publish("in.x", b"[%d]" % number)
        await until_entered(engine)

        def held() -> int:
            pipeline = actor.beats[-1].pipeline
            return pipeline.sources["r"].held if pipeline else 0

        await until(lambda: held() == 5)
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: held() == 1)
        engine.gate.set()
        await until(lambda: actor.beats[-1].state == "stopped")
        outcomes = actor.outcomes()

    assert outcomes == {"r": {"published": 1}}


async def test_a_burst_of_core_events_longer_than_the_deadline_waits(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Forty events of 50 ms each, and a deadline of one second: there is no second delivery."""
    rules = tmp_path / "rules.toml"
    rules.write_text(rule_text(), encoding="utf-8")

    async with rules_actor(
        js_server, rules, SlowEngine(), batch_rows_max=1, timeout_ms_default=1000
    ) as actor:
        for number in range(40):
            await actor.client.publish("in.x", b"[%d]" % number)
        await actor.until_settled(40)
        outcomes = actor.outcomes()

    assert outcomes == {"r": {"published": 40}}


async def test_a_loop_that_no_file_shows_is_stopped(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Somebody's program takes what the rule publishes back to its source: three rounds at most."""
    rules = tmp_path / "rules.toml"
    rules.write_text(rule_text(), encoding="utf-8")

    async with rules_actor(js_server, rules) as actor:

        async def back(message: Msg) -> None:
            await actor.client.publish("in.x", message.data, headers=message.headers)

        await actor.client.subscribe("out.r", cb=back)
        await actor.client.publish("in.x", b'{"a": 1}')
        [letter] = await actor.dead(1)
        await actor.until_settled(4)
        outcomes = actor.outcomes()

    assert outcomes == {"r": {"published": 3, "loop": 1}}
    assert (letter.headers or {})["Semif-Hops"] == "3"


async def test_a_file_with_mistakes_ends_the_start(tmp_path: Path) -> None:
    """Exit code 2 before anything else is tried, and every mistake in the log."""
    rules = tmp_path / "rules.toml"
    rules.write_text(
        rule_text(name="a", sinks='[[rules.sinks]]\nsubject = "x.{nothing}"\n')
        + rule_text(name="b", source='{ subject = ">" }'),
        encoding="utf-8",
    )

    with capture_logs() as lines:
        code = await serve(Settings(nats_url="nats://127.0.0.1:1", rules=rules))

    assert code == Exit.SETTINGS
    assert [line["file"] for line in lines] == [str(rules)] * 2
    assert ['"a"' in lines[0]["text"], '"b"' in lines[1]["text"]] == [True, True]
