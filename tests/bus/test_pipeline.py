"""Jobs and rules in one actor, each under its own name."""

from __future__ import annotations

import json
from pathlib import Path

import nats
from actors import decision
from in_process import actor_in_process
from rule_samples import rule_text
from rules_actor import rules_actor, until
from streams import jetstream_server

from actor.bus.embedded import EmbeddedServer
from actor.settings import Settings


async def test_jobs_and_a_rule_called_jobs_work_side_by_side(tmp_path: Path) -> None:
    """Each has its counts in the heartbeat, and its consumer or its subject."""
    rules = tmp_path / "rules.toml"
    source = '{ subject = "in.*", stream = "EVENTS" }'
    rules.write_text(rule_text(name="jobs", source=source), encoding="utf-8")
    with jetstream_server(tmp_path / "js") as server:
        async with rules_actor(server, rules, streams={"EVENTS": ["in.*"]}, jobs=True) as actor:
            await actor.js.publish("semif.v1.jobs.a.b", json.dumps(decision()).encode())
            await actor.js.publish("in.x", b'{"a": 1}')
            [result] = await actor.stored("SEMIF_RESULTS", 1)
            expected = {"jobs": {"done": 1}, "rule jobs": {"published": 1}}
            await until(lambda: actor.outcomes() == expected)

    assert result.subject == "semif.v1.results.a.b"


async def test_an_actor_without_either_says_nothing_of_them(server: EmbeddedServer) -> None:
    """Null in the heartbeat: a server without JetStream will do."""
    watcher = await nats.connect(server.url)
    async with actor_in_process(Settings(nats_url=server.url, instance="t"), watcher) as beats:
        ready = beats[-1]
    await watcher.close()

    assert ready.pipeline is None
