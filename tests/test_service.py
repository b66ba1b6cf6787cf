"""The life of a real actor process: proving, refusing, draining, dying, each with its exit code."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from actors import ask, connections_of, decision, error_of, patched, run_actor
from tiny_models import REVISION, copy_of, seal

from actor.bus.embedded import EmbeddedServer

SLOW_SCORE = """
import time
import semif_phase1.direct as direct
real = direct.score
def score(model, tokenizer, row, metadata, max_tokens):
    time.sleep(0.1)
    return real(model, tokenizer, row, metadata, max_tokens)
direct.score = score
"""


def subscriptions_in(trace: Path) -> list[str]:
    """Give every SUB that the server has ever read, but those of the test's own client."""
    lines = re.findall(r"<<- \[SUB (\S+)", trace.read_text(encoding="utf-8"))
    return [subject for subject in lines if not subject.startswith(("semif.v1.health.", "_INBOX"))]


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


def flip_a_byte(folder: Path) -> None:
    """Flip one bit in the middle of the weights."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def with_tensors(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Give a change of a model directory that rewrites its tensors."""

    def rewrite(folder: Path) -> None:
        import safetensors.torch

        path = folder / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        change(tensors)
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})

    return rewrite


def drop_tensor(tensors: dict[str, Any]) -> None:
    """Take one tensor away."""
    del tensors["model.layers.1.mlp.up_proj.weight"]


def zero_head(tensors: dict[str, Any]) -> None:
    """Make every logit zero."""
    tensors["lm_head.weight"].zero_()


def nan_norm(tensors: dict[str, Any]) -> None:
    """Make every logit NaN."""
    tensors["model.norm.weight"].fill_(float("nan"))


def with_template(change: Callable[[str], str]) -> Callable[[Path], None]:
    """Give a change of a model directory that rewrites its chat template."""

    def rewrite(folder: Path) -> None:
        path = folder / "chat_template.jinja"
        text = path.read_text(encoding="utf-8")
        changed = change(text)
        assert changed != text
        path.write_text(changed, encoding="utf-8")

    return rewrite


def two_tokens_for_a(folder: Path) -> None:
    """Make the tokenizer read every A as two of them."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"String": "A"}, "content": "AA"}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


CONTENT = "message['content']"

BAD_MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing tensor": (with_tensors(drop_tensor), "weights"),
    "no chat template": (lambda folder: (folder / "chat_template.jinja").unlink(), "template"),
    "a template that drops the payload": (
        with_template(lambda text: text.replace(CONTENT, "'hello'")),
        "template",
    ),
    "a template that trims the payload": (
        with_template(lambda text: text.replace(CONTENT, CONTENT + "[:300]")),
        "template",
    ),
    "a template that collapses spaces": (
        with_template(lambda text: text.replace(CONTENT, CONTENT + ".split()|join(' ')")),
        "template",
    ),
    "letters that are not single tokens": (two_tokens_for_a, "answer_slots"),
    "constant logits": (with_tensors(zero_head), "decision"),
    "logits that are not finite": (with_tensors(nan_norm), "decision"),
}


async def refuses_to_start(
    server: EmbeddedServer,
    model: Path,
    folder: Path,
    proof: str,
    settings: dict[str, str] | None = None,
) -> str:
    """Check an exit with 3, a heartbeat that names the proof, and no subscription ever made."""
    async with run_actor(server, model, folder, settings=settings) as actor:
        assert await actor.exit_code() == 3, actor.log_text()
        await actor.client.flush()
        failed = await actor.until("failed")
    assert failed.proofs[-1].name == proof
    assert failed.proofs[-1].outcome == "failed"
    assert failed.reason is not None
    assert failed.reason.startswith(f"{proof}: ")
    assert "PUB semif.v1.health.test" in server.log.read_text(encoding="utf-8")
    assert subscriptions_in(server.log) == []
    return failed.reason


@pytest.mark.parametrize("name", BAD_MODELS)
async def test_a_bad_model_is_never_served(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    """Each fault of a model or its tokenizer stops the start at the proof that is about it."""
    change, proof = BAD_MODELS[name]
    model = copy_of(tiny_llama, tmp_path / "model", change)

    await refuses_to_start(traced_server, model, tmp_path, proof)


async def test_a_flipped_byte_is_noticed(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """Weights that are not those that were imported are not loaded."""
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    flip_a_byte(model)

    reason = await refuses_to_start(traced_server, model, tmp_path, "weights")

    assert "model.safetensors" in reason


async def test_another_revision_is_refused(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """The revision asked for and the manifest's must be equal."""
    other = "f" * 40

    reason = await refuses_to_start(
        traced_server, tiny_llama, tmp_path, "weights", {"SEMIF_REVISION": other}
    )

    assert other in reason
    assert REVISION in reason


async def test_a_device_that_is_not_there_is_refused(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """An actor told to use a card never falls back to the CPU."""
    await refuses_to_start(
        traced_server, tiny_llama, tmp_path, "device", {"SEMIF_DEVICE": "cuda:63"}
    )


async def test_a_renamed_hook_is_refused(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """SemIf without _state_prefix is not the SemIf that is wrapped."""
    code = "import semif_phase1.shared as s\ns._renamed = s._state_prefix\ndel s._state_prefix\n"
    settings = patched(tmp_path / "patch", code)

    await refuses_to_start(traced_server, tiny_llama, tmp_path, "binding", settings)


async def test_a_function_with_other_globals_is_refused(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """A score_shared that would not see the wrapper is not used."""
    code = (
        "import types, semif_phase1.shared as s\n"
        "f = s.score_shared\n"
        "s.score_shared = types.FunctionType(f.__code__, dict(vars(s)), f.__name__, f.__defaults__)"
        "\n"
    )
    settings = patched(tmp_path / "patch", code)

    await refuses_to_start(traced_server, tiny_llama, tmp_path, "binding", settings)


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


async def test_the_end_of_the_gpu_thread_fails_all_and_exits_4(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """A dead thread answers nobody, so everybody is told, and a supervisor restarts."""
    code = SLOW_SCORE.replace(
        "    return real",
        "    if row['state'] == 'die': raise SystemExit\n    return real",
    )
    settings = patched(tmp_path / "patch", code)
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")
        states = ["die", *(f"waiting {n}" for n in range(5))]
        replies = await asyncio.gather(*(ask(actor.client, decision(s)) for s in states))

        assert await actor.exit_code() == 4, actor.log_text()
        failed = await actor.until("failed")
    codes = Counter(error_of(reply)["code"] for reply in replies)
    assert codes == {"scoring_failed": 1, "draining": 5}
    assert failed.reason == "the GPU thread has ended"


async def test_a_bug_in_the_scheduler_fails_all_and_exits_4(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """What nobody foresaw still has an exit code, a heartbeat and a reply."""
    code = """
import actor.scheduling.batcher as batcher
real = batcher.Batcher.next_batch
def next_batch(self):
    jobs = real(self)
    if any(job.prepared.work.state == "trigger" for job in jobs):
        raise ZeroDivisionError("a secret")
    return jobs
batcher.Batcher.next_batch = next_batch
"""
    settings = patched(tmp_path / "patch", code)
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")

        reply = await ask(actor.client, decision("trigger"))

        assert await actor.exit_code() == 4, actor.log_text()
        failed = await actor.until("failed")
    assert error_of(reply)["status"] in {500, 503}
    assert failed.reason == "a bug: ZeroDivisionError"


@pytest.mark.parametrize("state", ["proving", "ready"])
async def test_an_actor_that_cannot_tell_its_health_ends(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path, state: str
) -> None:
    """A bug under the heartbeat is no silence with an actor behind it: exit 4."""
    code = f"""
import actor.life as life
real = life.Life.heartbeat
def heartbeat(self, *arguments, **options):
    beat = real(self, *arguments, **options)
    if beat.state == "{state}":
        raise ZeroDivisionError
    return beat
life.Life.heartbeat = heartbeat
"""
    settings = patched(tmp_path / "patch", code)
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        assert await actor.exit_code() == 4, actor.log_text()
        failed = await actor.until("failed")
    assert failed.reason == "a bug: ZeroDivisionError"


async def test_a_canary_that_sings_another_song_exits_4(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """A model whose answers have changed since the start is not served any more."""
    code = """
import semif_phase1.direct as direct
real = direct.score
broken = []
def score(model, tokenizer, row, metadata, max_tokens):
    if row["state"] == "break":
        broken.append(True)
        raise RuntimeError("an engine error: the canary is asked next")
    result = real(model, tokenizer, row, metadata, max_tokens)
    if broken:
        result["option_logits"] = [logit + 5.0 for logit in result["option_logits"]]
    return result
direct.score = score
"""
    settings = patched(tmp_path / "patch", code)
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")

        error = error_of(await ask(actor.client, decision("break")))

        assert error["code"] == "scoring_failed"
        assert await actor.exit_code() == 4, actor.log_text()
        failed = await actor.until("failed")
        with pytest.raises(nats.errors.NoRespondersError):
            await ask(actor.client, decision())
    assert failed.reason is not None
    assert failed.reason.startswith("canary: ")


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
