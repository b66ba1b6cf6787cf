"""Jobs and rules in one actor, each under its own name."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import nats
from actors import decision
from in_process import QuickEngine, actor_in_process
from rule_samples import rule_text
from rules_actor import rules_actor, until
from streams import jetstream_server

from actor.bus.embedded import EmbeddedServer
from actor.engine.base import Outcome, Prepared
from actor.settings import Settings

EVENTS = '{ subject = "in.*", stream = "EVENTS" }'


class SlowEngine(QuickEngine):
    """Takes a while for each batch."""

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """Score, slowly."""
        time.sleep(0.05)
        return super().score(batch)


async def test_jobs_and_a_rule_called_jobs_work_side_by_side(tmp_path: Path) -> None:
    """Each has its counts in the heartbeat, and its consumer or its subject."""
    rules = tmp_path / "rules.toml"
    rules.write_text(rule_text(name="jobs", source=EVENTS), encoding="utf-8")
    with jetstream_server(tmp_path / "js") as server:
        async with rules_actor(server, rules, streams={"EVENTS": ["in.*"]}, jobs=True) as actor:
            await actor.js.publish("semif.v1.jobs.a.b", json.dumps(decision()).encode())
            await actor.js.publish("in.x", b'{"a": 1}')
            [result] = await actor.stored("SEMIF_RESULTS", 1)
            expected = {"jobs": {"done": 1}, "rule jobs": {"published": 1}}
            await until(lambda: actor.outcomes() == expected)

    assert result.subject == "semif.v1.results.a.b"


async def test_many_sources_fetch_no_more_than_ends_in_time(tmp_path: Path) -> None:
    """Twelve rules, each with a backlog and told of the same room: no event costs two deliveries.

    36 events of 50 ms each would be fetched at once, and the deadline is a second and a half.
    """
    rules = tmp_path / "rules.toml"
    names = [f"r{number}" for number in range(12)]
    text = "".join(rule_text(name=name, source=EVENTS) for name in names)
    rules.write_text(text, encoding="utf-8")
    with jetstream_server(tmp_path / "js") as server:
        async with rules_actor(
            server,
            rules,
            SlowEngine(),
            streams={"EVENTS": ["in.*"]},
            batch_rows_max=1,
            timeout_ms_default=1500,
        ) as actor:
            for number in range(6):
                await actor.js.publish("in.x", b"[%d]" % number)
            await actor.until_settled(72)
            pipeline = actor.beats[-1].pipeline

    assert pipeline is not None
    assert {name: pipeline.sources[name].outcomes for name in names} == {
        name: {"published": 6} for name in names
    }
    assert [pipeline.sources[name].retries for name in names] == [0] * 12


async def test_a_message_that_two_rules_bury_has_two_dead_letters(tmp_path: Path) -> None:
    """It is one message of the stream, and two ends of it: no duplicate of each other."""
    rules = tmp_path / "rules.toml"
    text = "".join(rule_text(name=name, source=EVENTS) for name in ("a", "b"))
    rules.write_text(text, encoding="utf-8")
    with jetstream_server(tmp_path / "js") as server:
        async with rules_actor(server, rules, streams={"EVENTS": ["in.*"]}) as actor:
            await actor.js.publish("in.x", b"{")
            await actor.until_settled(2)
            letters = await actor.dead(2)

    assert {letter.subject for letter in letters} == {
        "semif.v1.dead.rules.a",
        "semif.v1.dead.rules.b",
    }


async def test_an_actor_without_either_says_nothing_of_them(server: EmbeddedServer) -> None:
    """Null in the heartbeat: a server without JetStream will do."""
    watcher = await nats.connect(server.url)
    async with actor_in_process(Settings(nats_url=server.url, instance="t"), watcher) as beats:
        ready = beats[-1]
    await watcher.close()

    assert ready.pipeline is None
