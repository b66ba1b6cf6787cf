"""Faults while serving: everyone has a reply, the exit code and the last heartbeat say why."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import nats.errors
import pytest
from actors import (
    SLOW_SCORE,
    ask,
    decision,
    error_of,
    patched,
    run_actor,
)

from actor.bus.embedded import EmbeddedServer


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
