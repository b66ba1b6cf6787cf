"""The life of a real actor process: proving, refusing, draining, dying, each with its exit code."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from actors import (
    SLOW_SCORE,
    ask,
    connections_of,
    decision,
    error_of,
    patched,
    run_actor,
)
from tiny_models import REVISION, seal

from actor.bus.embedded import EmbeddedServer


async def test_nothing_is_subscribed_before_every_proof_has_passed(
    server: EmbeddedServer, demo_model: Path, tmp_path: Path
) -> None:
    """While proving: no responders at once, no subscription, heartbeats that name the proof."""
    settings = {"SEMIF_MAX_TOKENS": "2048", "SEMIF_BATCH_TOKENS_MAX": "32768"}
    async with run_actor(server, demo_model, tmp_path, settings=settings) as actor:
        proving = await actor.until("proving")
        assert proving.proof is None
        while not (running := [p.name for p in actor.heartbeats[-1].proofs]) or (
            running[-1] != "peak"
        ):
            async with actor.news:
                await actor.news.wait()
        with pytest.raises(nats.errors.NoRespondersError):
            await ask(actor.client, decision(), timeout_s=5)
        [connection] = connections_of(server, "test")
        assert connection["subscriptions"] == 0
        assert actor.heartbeats[-1].proofs[-1].outcome == "running"

        ready = await actor.until("ready")

        assert json.loads((await ask(actor.client, decision())).data)["choice"]
        [connection] = connections_of(server, "test")
    assert sorted(connection["subscriptions_list"]) == [
        *("$SRV.INFO", "$SRV.INFO.semif", "$SRV.INFO.semif.test"),
        *("$SRV.PING", "$SRV.PING.semif", "$SRV.PING.semif.test"),
        *("$SRV.STATS", "$SRV.STATS.semif", "$SRV.STATS.semif.test"),
        "semif.v1.health.*",
        "semif.v1.score",
        "semif.v1.score_shared",
        "semif.v1.status",
    ]
    named = [proof.name for proof in ready.proofs]
    assert named == [
        *("device", "weights", "binding", "template", "answer_slots", "decision"),
        *("state_prefix", "control_text", "peak", "bus"),
    ]
    assert all(proof.outcome == "passed" for proof in ready.proofs)
    assert {"starting", "proving", "ready"} <= {beat.state for beat in actor.heartbeats}


async def test_equal_starts_have_equal_proofs_and_replies_carry_them(
    server: EmbeddedServer, tiny_llama: Path, tiny_qwen3: Path, tmp_path: Path
) -> None:
    """The hash of the start report is the same for the same model, and another for another."""
    hashes = []
    for instance, model in (("a", tiny_llama), ("b", tiny_llama), ("c", tiny_qwen3)):
        async with run_actor(server, model, tmp_path, instance=instance) as actor:
            ready = await actor.until("ready")
            served_by = json.loads((await ask(actor.client, decision())).data)["served_by"]
            assert served_by == {
                "instance": instance,
                "scorer": "reference",
                "proof": ready.proof,
            }
            hashes.append(ready.proof)
            assert await actor.stop() == 0

    assert hashes[0] == hashes[1] != hashes[2]


async def test_a_denied_subscription_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    """A server that does not let the actor subscribe raises nothing; the start still fails."""
    from actor.bus.embedded import embedded_server

    config = tmp_path / "nats.conf"
    config.write_text(
        "authorization { users = [ { user: test, password: test },"
        ' { user: actor, password: pass, permissions: { subscribe: { deny: "semif.v1.score" },'
        ' publish: ">" } } ] }',
        encoding="utf-8",
    )
    with embedded_server(tmp_path, config=config) as server:
        host = server.url.removeprefix("nats://")
        settings = {"SEMIF_NATS_URL": f"nats://actor:pass@{host}"}
        watched = EmbeddedServer(
            f"nats://test:test@{host}", server.monitor_url, server.log, server.process
        )
        async with run_actor(watched, tiny_llama, tmp_path, settings=settings) as actor:
            assert await actor.exit_code() == 3, actor.log_text()
            failed = await actor.until("failed")

    assert failed.proofs[-1].name == "bus"
    assert "semif.v1.score" in failed.proofs[-1].detail


async def test_sigterm_answers_what_is_in_flight(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """20 requests in flight at SIGTERM: 20 answers, and a clean exit."""
    settings = patched(tmp_path / "patch", SLOW_SCORE)
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")
        asked = [asyncio.create_task(ask(actor.client, decision())) for _ in range(20)]
        await in_queue(actor.client, 20)

        actor.process.send_signal(signal.SIGTERM)
        replies = await asyncio.gather(*asked)

        assert await actor.exit_code() == 0, actor.log_text()
        assert all(json.loads(reply.data)["choice"] for reply in replies)
        with pytest.raises(nats.errors.NoRespondersError):
            await ask(actor.client, decision())
    states = [beat.state for beat in actor.heartbeats]
    assert states[-1] == "stopped"
    assert "draining" in states


async def in_queue(client: Any, jobs: int) -> None:
    """Wait until the actor says that it holds this many requests."""
    while True:
        status = json.loads((await client.request("semif.v1.status", timeout=10)).data)
        if status["queue"]["jobs"] >= jobs:
            return


@pytest.mark.parametrize("second_signal", [False, True])
async def test_a_drain_cut_short_still_answers_everyone(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path, *, second_signal: bool
) -> None:
    """At the deadline, or at a second signal, what is left is told ``draining``; exit 5."""
    settings = patched(tmp_path / "patch", SLOW_SCORE)
    settings["SEMIF_DRAIN_S"] = "600" if second_signal else "0.2"
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")
        asked = [asyncio.create_task(ask(actor.client, decision())) for _ in range(20)]
        await in_queue(actor.client, 20)

        actor.process.send_signal(signal.SIGTERM)
        if second_signal:
            await actor.until("draining")
            actor.process.send_signal(signal.SIGINT)
        replies = await asyncio.gather(*asked)

        assert await actor.exit_code() == 5, actor.log_text()
    codes = Counter(error_of(m)["code"] if m.headers else "answered" for m in replies)
    assert codes["draining"] > 0
    assert codes.keys() <= {"answered", "draining"}


async def test_sigterm_while_proving_is_a_clean_stop(
    server: EmbeddedServer, demo_model: Path, tmp_path: Path
) -> None:
    """Nothing was promised yet, so there is nothing to drain."""
    async with run_actor(server, demo_model, tmp_path) as actor:
        await actor.until("proving")

        assert await actor.stop() == 0, actor.log_text()


async def test_the_canary_is_asked_when_idle(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """Heartbeats of an idle actor say when the known decision last had its known answer."""
    settings = {"SEMIF_CANARY_S": "0.2", "SEMIF_HEARTBEAT_S": "0.2"}
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")
        while actor.heartbeats[-1].canary.runs < 2:
            async with actor.news:
                await actor.news.wait()

        assert actor.heartbeats[-1].canary.last_ok is not None


async def test_a_bus_that_stays_away_ends_the_process(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """Without a server for SEMIF_BUS_LOST_S there is nobody to serve; a supervisor decides."""
    settings = {"SEMIF_BUS_LOST_S": "1"}
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")

        server.process.kill()

        assert await actor.exit_code() == 6, actor.log_text()


async def test_no_server_at_the_start_ends_the_process(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """A server that never answers is waited for, but not for ever."""
    settings = {"SEMIF_NATS_URL": "nats://127.0.0.1:1", "SEMIF_BUS_LOST_S": "1"}
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        assert await actor.exit_code() == 6, actor.log_text()


async def test_bad_settings_exit_2_before_anything_else(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """A supervisor must not restart what only an edit can mend."""
    settings = {"SEMIF_MAX_TOKEN": "4096"}
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        assert await actor.exit_code() == 2

        assert "SEMIF_MAX_TOKEN " in actor.log_text()


async def test_heartbeats_go_on_while_the_model_is_busy(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """A scorer that works for seconds does not silence the actor (INV-10)."""
    settings = patched(tmp_path / "patch", SLOW_SCORE.replace("0.1", "3"))
    settings |= {"SEMIF_HEARTBEAT_S": "0.2"}
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")
        asked = asyncio.create_task(ask(actor.client, decision()))
        await in_queue(actor.client, 1)
        seen = len(actor.heartbeats)

        await asked

        busy = [beat for beat in actor.heartbeats[seen:] if beat.queue.in_flight == 1]
    assert len(busy) >= 3


async def test_every_actor_answers_status(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """The status subject has no queue group: two actors, two answers."""
    async with (
        run_actor(server, tiny_llama, tmp_path, instance="one") as one,
        run_actor(server, tiny_llama, tmp_path, instance="two") as two,
    ):
        await one.until("ready")
        await two.until("ready")
        inbox = one.client.new_inbox()
        answers = await one.client.subscribe(inbox)
        await one.client.publish("semif.v1.status", b"", reply=inbox)
        names = {json.loads((await answers.next_msg(10)).data)["instance"] for _ in range(2)}

    assert names == {"one", "two"}


def test_seal_makes_the_manifest_of_what_is_there(tiny_llama: Path, tmp_path: Path) -> None:
    """The helper of these tests leaves a directory that the start accepts."""
    from actor.engine.manifest import read_and_verify

    shutil.copytree(tiny_llama, tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("more", encoding="utf-8")

    manifest, _ = read_and_verify(seal(tmp_path / "model"), revision=REVISION)

    assert "README.md" in {entry.path for entry in manifest.files}
