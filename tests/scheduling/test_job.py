"""One request's way through the queue ends once."""

from __future__ import annotations

import asyncio

import pytest
from scripted_engine import DONE, prepared

from actor.engine.base import Outcome
from actor.scheduling.job import Job
from schemas.errors import OutOfMemory


def job() -> Job:
    """Give a job that arrived at 1 s."""
    return Job(prepared("x"), "caller", 1.0, asyncio.get_running_loop().create_future())


async def test_scores_come_with_the_time_waited() -> None:
    """From 1 s to 1.5 s is 500 ms; the scores are passed on as they are."""
    scored = job()

    scored.resolve(DONE, started_s=1.5)

    assert scored.future.result().queue_ms == 500.0
    assert scored.future.result().scores is DONE


async def test_an_error_is_raised_to_the_one_who_waits() -> None:
    """The very error that the engine gave."""
    failed, error = job(), OutOfMemory()

    failed.resolve(error, started_s=1.0)

    with pytest.raises(OutOfMemory) as caught:
        await failed.future
    assert caught.value is error


@pytest.mark.parametrize("second", [DONE, OutOfMemory()], ids=["scores", "error"])
async def test_a_second_outcome_changes_nothing(second: Outcome) -> None:
    """Neither for a job that has its answer nor for one that nobody awaits."""
    scored, abandoned = job(), job()
    scored.resolve(DONE, started_s=1.5)
    abandoned.future.cancel()

    scored.resolve(second, started_s=2.0)
    abandoned.resolve(second, started_s=2.0)

    assert scored.future.result().queue_ms == 500.0
    assert abandoned.future.cancelled()


async def test_a_job_is_abandoned_when_nobody_waits() -> None:
    """Not before its future is done, by whatever end."""
    waiting, given_up = job(), job()
    given_up.future.cancel()

    assert not waiting.abandoned
    assert given_up.abandoned


async def test_a_job_knows_what_it_costs() -> None:
    """Three rows of two tokens each behind a state of ten: 10 + 3 * 2 = 16 tokens."""
    future = asyncio.get_running_loop().create_future()

    costly = Job(prepared("x", rows=3, state_tokens=10, own_tokens=2), "caller", 1.0, future)

    assert (costly.rows, costly.tokens) == (3, 16)
