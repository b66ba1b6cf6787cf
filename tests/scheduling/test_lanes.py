"""Live work first."""

from __future__ import annotations

import asyncio

from scripted_engine import prepared

from actor.scheduling.job import Job
from actor.scheduling.lanes import Lanes


def job(name: str, *, background: bool = False, enqueued_s: float = 0.0) -> Job:
    """Give a job of one row."""
    future = asyncio.get_running_loop().create_future()
    return Job(prepared(name), "caller", enqueued_s, future, background=background)


def names(jobs: list[Job]) -> list[str]:
    """Give the names of jobs."""
    return [str(each.prepared.work.state) for each in jobs]


async def test_background_jobs_wait_until_no_live_one_does() -> None:
    """Whenever they came; and a live one that comes later goes first."""
    lanes = Lanes(tokens_max=1000, rows_max=2)
    for number in range(3):
        lanes.append(job(f"b{number}", background=True, enqueued_s=float(number)))
    for number in range(3):
        lanes.append(job(f"l{number}", enqueued_s=5.0 + number))

    assert len(lanes) == 6
    assert lanes.oldest_enqueued_s() == 5.0
    assert [names(lanes.next_batch()) for _ in range(3)] == [["l0", "l1"], ["l2"], ["b0", "b1"]]
    lanes.append(job("l3"))
    assert [names(lanes.next_batch()) for _ in range(3)] == [["l3"], ["b2"], []]


async def test_jobs_are_let_go_from_their_own_lane() -> None:
    """One of each is discarded; the rest is taken to be failed."""
    lanes = Lanes(tokens_max=1000, rows_max=2)
    live, background = job("l"), job("b", background=True)
    for each in (live, background, job("kept"), job("kept too", background=True)):
        lanes.append(each)

    lanes.discard(live)
    lanes.discard(background)

    assert names(lanes.take_all()) == ["kept", "kept too"]
    assert len(lanes) == 0
