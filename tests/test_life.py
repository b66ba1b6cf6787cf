"""The state of the process and the heartbeat that tells it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import jsonschema
import msgspec
import pytest

from actor.life import Life, State
from actor.scheduling.admission import Admission
from actor.settings import Settings
from actor.telemetry.meter import Meter
from schemas.health import ProofReport

SCHEMA = json.loads(
    (Path(__file__).parents[1] / "schemas" / "v1" / "heartbeat.json").read_text(encoding="utf-8")
)


def life() -> Life:
    """Give a process that has just started."""
    return Life(Settings(instance="unit"), Meter(), Admission(jobs_max=3, bytes_max=9))


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

    beat = process.heartbeat(1, reconnects=0)
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


def test_the_first_heartbeat_is_valid_before_anything_is_there() -> None:
    """No engine, no queue, no proof: still the contract's record."""
    process = life()

    beat = process.heartbeat(7, reconnects=2)

    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(msgspec.json.encode(beat)))
    assert (beat.sequence, beat.state, beat.bus.reconnects) == (7, "starting", 2)
    assert beat.time.endswith("Z")
    assert (beat.queue.jobs, beat.queue.jobs_max, beat.engine, beat.proof) == (0, 3, None, None)
