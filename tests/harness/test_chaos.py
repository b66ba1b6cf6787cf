"""The short form of ``make soak``'s chaos: a few faults of each kind, and every request counted."""

from __future__ import annotations

from pathlib import Path

from harness.callers import ANSWERED
from harness.chaos import Patience, chaos, told
from harness.faults import DRAIN, FLOOD, KILL, PAUSE, Plan

SEED = 35
PLAN = Plan(of_nodes=(KILL, PAUSE), between_s=(0.3, 0.6))


async def test_random_faults_lose_and_double_nothing(tmp_path: Path) -> None:
    """Servers killed and paused, floods, drains: what has no reply has a reason that is shown."""
    outcome = await chaos(tmp_path, seconds=4, seed=SEED, plan=PLAN, patience=Patience())

    assert not outcome.unexplained, told(outcome, SEED)
    assert outcome.counts[ANSWERED] > 0
    assert set(outcome.faults) == {KILL, PAUSE, DRAIN, FLOOD}
