"""The state of the process and the heartbeat that tells it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from scripted_engine import ScriptedEngine, prepared

from actor.life import Life, State
from actor.scheduling.admission import Admission
from actor.scheduling.gpu_thread import GpuThread
from actor.scheduling.lanes import Lanes
from actor.scheduling.scheduler import Scheduler
from actor.settings import Settings
from actor.telemetry.meter import Meter
from schemas.decision import ModelInfo
from schemas.errors import Draining
from schemas.health import BusHealth, EngineHealth, ProofReport

SCHEMA = json.loads(
    (Path(__file__).parents[1] / "schemas" / "v1" / "heartbeat.json").read_text(encoding="utf-8")
)
BUS = BusHealth(
    reconnects=0,
    moves=0,
    queue_group="semif",
    taking=False,
    steps_out=0,
    dropped_unsent=0,
    dropped_by_client=0,
    publishes_refused=0,
)


def life() -> Life:
    """Give a process that has just started."""
    admission = Admission(jobs_max=3, bytes_max=18, tokens_max=99)
    return Life(Settings(instance="unit"), Meter(), admission)


def proof(name: str, outcome: str) -> ProofReport:
    """Give the news of a proof."""
    return ProofReport(name=name, outcome=outcome, seconds=0.0, detail="")


def test_states_go_forward_only() -> None:
    """Every step back, and every step out of an end, is a bug that shows."""
    for earlier, later in pairwise(State):
        process = life()
        process._state = later
        with pytest.raises(AssertionError, match="a bug"):
            process.enter(earlier)
        with pytest.raises(AssertionError, match="a bug"):
            process.enter(later)
    stopped = life()
    stopped.enter(State.STOPPED)
    with pytest.raises(AssertionError, match="a bug"):
        stopped.enter(State.FAILED)


@pytest.mark.parametrize("state", [s for s in State if s < State.STOPPED])
def test_any_state_can_fail(state: State) -> None:
    """With its reason in the heartbeat."""
    process = life()
    process._state = state

    process.enter(State.FAILED, "weights: gone")

    beat = process.heartbeat(1, BUS)
    assert (beat.state, beat.reason) == ("failed", "weights: gone")


def test_the_end_of_a_proof_takes_the_place_of_its_start() -> None:
    """The report holds each proof once; the last entry is the one that runs, or failed."""
    process = life()
    for name, outcome in (
        ("device", "running"),
        ("device", "passed"),
        ("weights", "running"),
        ("weights", "failed"),
    ):
        process.report(proof(name, outcome))

    assert [(p.name, p.outcome) for p in process.proofs] == [
        ("device", "passed"),
        ("weights", "failed"),
    ]


@pytest.mark.parametrize("state", State)
def test_nothing_follows_an_end(state: State) -> None:
    """``stopped`` and ``failed`` are the last word."""
    for end in (State.STOPPED, State.FAILED):
        process = life()
        process._state = end
        with pytest.raises(AssertionError, match="a bug"):
            process.enter(state)
        assert process.state is end


@pytest.mark.parametrize("state", State)
def test_every_state_is_told_by_the_name_of_the_contract(state: State) -> None:
    """The names are those that the heartbeat's schema lists."""
    process = life()
    process._state = state

    name = process.heartbeat(1, BUS).state

    assert f"`{name}`" in SCHEMA["properties"]["state"]["description"]


def test_a_reason_goes_with_its_state() -> None:
    """The next state has its own, or none."""
    process = life()
    process.enter(State.DRAINING, "told to stop")
    assert process.heartbeat(1, BUS).reason == "told to stop"

    process.enter(State.STOPPED)

    assert process.heartbeat(2, BUS).reason is None


def test_a_proof_that_ended_stays_when_the_next_one_starts() -> None:
    """While a proof runs it is the last entry, behind all that have ended."""
    process = life()
    for name, outcome in (("device", "running"), ("device", "passed"), ("weights", "running")):
        process.report(proof(name, outcome))

    assert [(p.name, p.outcome) for p in process.proofs] == [
        ("device", "passed"),
        ("weights", "running"),
    ]


class HealthyEngine(ScriptedEngine):
    """An engine that tells its health."""

    def health(self) -> EngineHealth:
        return EngineHealth(
            model=ModelInfo(
                source="m",
                revision="r",
                dtype="float32",
                torch_version="2",
                transformers_version="5",
            ),
            scorer="reference",
            device="cpu",
            device_name="a processor",
            memory_allocated_bytes=1,
            memory_reserved_bytes=2,
            memory_cap_bytes=0,
            memory_resting_bytes=2,
            tokens_max=512,
            attention="plain",
            prefix_cache=None,
        )


async def test_a_heartbeat_under_load_tells_what_runs_and_what_waits() -> None:
    """One request on the model, one in the queue, a canary that passed: valid and counted."""
    process, engine, gpu = life(), HealthyEngine(), GpuThread()
    batcher = Lanes(tokens_max=1000, rows_max=1)
    scheduler = Scheduler(engine, gpu, process._admission, batcher, canary_s=3600)
    process.engine, process.scheduler, process.proof = engine, scheduler, "abc"
    await scheduler._canary()
    scoring = asyncio.create_task(scheduler.run())
    engine.gate.clear()
    admission = process._admission
    with admission.permit(4), admission.permit(5), admission.permit_tokens(10):
        running = asyncio.create_task(scheduler.answer(prepared("runs"), caller="a"))
        await asyncio.to_thread(engine.entered.wait)
        waiting = asyncio.create_task(scheduler.answer(prepared("waits"), caller="b"))
        await asyncio.sleep(0)

        beat: Any = json.loads(msgspec.json.encode(process.heartbeat(1, BUS)))

        scheduler.close()
        engine.gate.set()
        await running
        with pytest.raises(Draining):
            await waiting
    scoring.cancel()
    await asyncio.gather(scoring, return_exceptions=True)
    await gpu.stop(within_s=5)

    jsonschema.Draft202012Validator(SCHEMA).validate(beat)
    assert beat["queue"].pop("oldest_ms") >= 0
    assert beat["queue"] == {
        "jobs": 2,
        "jobs_max": 3,
        "bytes": 9,
        "bytes_max": 18,
        "tokens": 10,
        "tokens_max": 99,
        "in_flight": 1,
    }
    assert (beat["proof"], beat["engine"]["device"], beat["canary"]["runs"]) == ("abc", "cpu", 1)
    for moment in (beat["time"], beat["canary"]["last_ok"]):
        assert datetime.fromisoformat(moment).astimezone(UTC) <= datetime.now(UTC)


def test_the_first_heartbeat_is_valid_before_anything_is_there() -> None:
    """No engine, no queue, no proof: still the contract's record."""
    process = life()

    beat = process.heartbeat(7, msgspec.structs.replace(BUS, reconnects=2))

    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(msgspec.json.encode(beat)))
    assert (beat.sequence, beat.state, beat.bus.reconnects) == (7, "starting", 2)
    assert beat.time.endswith("Z")
    assert (beat.queue.jobs, beat.queue.jobs_max, beat.engine, beat.proof) == (0, 3, None, None)
