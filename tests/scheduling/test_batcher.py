"""The waiting jobs: first in, first out, the abandoned ones dropped."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import prepared

from actor.scheduling.batcher import Batcher
from actor.scheduling.job import Job


def jobs_of(loop: asyncio.AbstractEventLoop, count: int) -> list[Job]:
    """Give jobs that arrived at 0 s, 1 s, 2 s and so on."""
    return [Job(prepared(str(n)), float(n), loop.create_future()) for n in range(count)]


async def test_order_is_kept_and_the_abandoned_are_dropped() -> None:
    """A job that is done already is not handed out, and does not count as the oldest."""
    jobs = jobs_of(asyncio.get_running_loop(), 4)
    batcher = Batcher()
    for job in jobs:
        batcher.append(job)
    jobs[0].future.cancel()
    jobs[2].future.cancel()

    assert batcher.oldest_enqueued_s() == 1.0
    assert batcher.next_batch() == [jobs[1]]
    assert batcher.next_batch() == [jobs[3]]
    assert batcher.next_batch() == []
    assert (len(batcher), batcher.oldest_enqueued_s()) == (0, None)


async def test_all_are_taken_at_once() -> None:
    """For an end that fails what waits; nothing is left behind."""
    jobs = jobs_of(asyncio.get_running_loop(), 3)
    batcher = Batcher()
    for job in jobs:
        batcher.append(job)

    assert batcher.take_all() == jobs
    assert len(batcher) == 0
    assert batcher.take_all() == []


@given(steps=st.lists(st.sampled_from(["append", "abandon", "take"]), max_size=40))
def test_any_sequence_hands_out_each_live_job_once_in_order(steps: list[str]) -> None:
    """Compared with a plain list of who still waits, of which the newest may give up."""
    loop = asyncio.new_event_loop()
    try:
        jobs = iter(jobs_of(loop, len(steps)))
        batcher, waiting = Batcher(), list[Job]()
        for step in steps:
            if step == "append":
                waiting.append(next(jobs))
                batcher.append(waiting[-1])
            elif step == "abandon" and waiting:
                waiting.pop().future.cancel()
            elif step == "take":
                assert batcher.next_batch() == waiting[:1]
                waiting = waiting[1:]
            assert batcher.oldest_enqueued_s() == (waiting[0].enqueued_s if waiting else None)
    finally:
        loop.close()


async def test_a_job_can_be_let_go() -> None:
    """One that waits is gone at once, its neighbours stay; one taken before changes nothing."""
    jobs = jobs_of(asyncio.get_running_loop(), 3)
    batcher = Batcher()
    for job in jobs:
        batcher.append(job)
    assert batcher.next_batch() == [jobs[0]]

    batcher.discard(jobs[0])
    batcher.discard(jobs[1])

    assert batcher.take_all() == [jobs[2]]
