"""The waiting jobs: full batches, states together, every caller in turn, nobody passed for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import prepared

from actor.scheduling.batcher import Batcher
from actor.scheduling.job import Job


class Queue:
    """A batcher, and jobs that arrive at 0 s, 1 s, 2 s and so on."""

    def __init__(self, *, tokens_max: int = 1000, rows_max: int = 64) -> None:
        self.batcher = Batcher(tokens_max=tokens_max, rows_max=rows_max)
        self.arrived: list[Job] = []

    def add(self, caller: str, name: str | None = None, **size: Any) -> Job:
        """Let a job of ``caller`` arrive; its tokens are 8 of the state and 2 of its own."""
        now = len(self.arrived)
        future = asyncio.get_event_loop().create_future()
        job = Job(prepared(name or str(now), **size), caller, float(now), future)
        self.arrived.append(job)
        self.batcher.append(job)
        return job

    def batch(self) -> list[str]:
        """Take the next batch, by the names of its jobs."""
        return [str(job.prepared.work.state) for job in self.batcher.next_batch()]


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """Give futures a loop; nothing here runs on it."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield
    asyncio.set_event_loop(None)
    made.close()


@pytest.mark.parametrize("tokens_max", [30, 39])
def test_a_batch_holds_what_fits_its_tokens(tokens_max: int) -> None:
    """Ten tokens each: three fit 30, and no fourth fits 39."""
    queue = Queue(tokens_max=tokens_max)
    for _ in range(4):
        queue.add("a")

    assert [queue.batch(), queue.batch(), queue.batch()] == [["0", "1", "2"], ["3"], []]


def test_a_batch_holds_what_fits_its_rows() -> None:
    """Two rows each: two jobs fit five rows."""
    queue = Queue(rows_max=5)
    for _ in range(3):
        queue.add("a", rows=2)

    assert [queue.batch(), queue.batch()] == [["0", "1"], ["2"]]


@pytest.mark.parametrize("size", [{"own_tokens": 93}, {"rows": 65, "own_tokens": 1}])
def test_a_job_over_a_limit_is_a_batch_by_itself(size: dict[str, int]) -> None:
    """101 tokens of 100, or 65 rows of 64: alone, in its turn, whoever waits beside it."""
    queue = Queue(tokens_max=100)
    queue.add("a", "before")
    queue.add("b", "large", **size)
    queue.add("b", "after", state="large")

    assert queue.batch() == ["before"]
    assert queue.batch() == ["large"]
    assert queue.batch() == ["after"]


def test_a_job_exactly_at_the_limits_is_taken() -> None:
    """8 + 64 * 2 tokens and 64 rows, limits of 136 and 64; one that costs nothing comes later."""
    queue = Queue(tokens_max=136, rows_max=64)
    queue.add("a", "exact", rows=64)
    queue.add("a", "nothing", rows=0)

    assert [queue.batch(), queue.batch()] == [["exact"], ["nothing"]]


def test_equal_states_cost_their_tokens_once() -> None:
    """Three jobs over one state are 8 + 3 * 2 = 14 tokens; 15 hold no fourth."""
    queue = Queue(tokens_max=15)
    for _ in range(4):
        queue.add("a", state="s")

    assert [queue.batch(), queue.batch()] == [["0", "1", "2"], ["3"]]


def test_jobs_of_a_state_in_the_batch_are_preferred() -> None:
    """Four rows: the state of the first job fills them, although others came before."""
    queue = Queue(rows_max=4)
    for name, state in enumerate("stststs"):
        queue.add("a", str(name), state=state)

    assert [queue.batch(), queue.batch()] == [["0", "2", "4", "6"], ["1", "3", "5"]]


def test_preference_takes_half_at_most_from_others_who_wait() -> None:
    """Eight rows, ``a`` has twenty jobs of one state: four follow the first, then others' turns.

    What is left when the others have had theirs is for ``a`` again.
    """
    queue = Queue(rows_max=8)
    for n in range(20):
        queue.add("a", f"a{n}", state="s")
    queue.add("b", "b0")
    queue.add("c", "c0")

    assert queue.batch() == ["a0", "a1", "a2", "a3", "a4", "b0", "c0", "a5"]
    assert queue.batch() == [f"a{n}" for n in range(6, 14)]


def test_preference_is_limited_by_tokens_too() -> None:
    """Of 40 tokens 20 are for favours, two of 10: state of 1 and 9 each."""
    queue = Queue(tokens_max=40)
    for n in range(5):
        queue.add("a", f"a{n}", state="s", state_tokens=1, own_tokens=9)
    queue.add("b", "b0", state_tokens=1, own_tokens=8)

    assert queue.batch() == ["a0", "a1", "a2", "b0"]


def test_states_are_shared_across_callers() -> None:
    """A caller's job over a state that is in the batch comes along before anybody's turn."""
    queue = Queue(rows_max=4)
    queue.add("a", "a0", state="s")
    queue.add("b", "b0")
    queue.add("c", "c0", state="s")
    queue.add("b", "b1")

    assert [queue.batch(), queue.batch()] == [["a0", "c0", "b0", "b1"], []]


def test_callers_take_turns() -> None:
    """One job each, the oldest of each first; who was served last waits longest."""
    queue = Queue(rows_max=4)
    for name in ("a0", "a1", "a2", "a3", "b0", "b1", "c0"):
        queue.add(name[0], name)

    assert queue.batch() == ["a0", "b0", "c0", "a1"]
    # The next begins with the caller whose turn it is, not with the oldest job.
    assert queue.batch() == ["b1", "a2", "a3"]


def test_batches_begin_with_the_oldest_and_with_the_next_caller_by_turns() -> None:
    """One row a batch: the old jobs of ``a`` do not wait for every newcomer, nor ``b`` for them."""
    queue = Queue(rows_max=1)
    for name in ("a0", "a1", "a2", "b0", "c0", "d0"):
        queue.add(name[0], name)

    begins = [name for _ in range(6) for name in queue.batch()]

    assert begins == ["a0", "b0", "a1", "c0", "a2", "d0"]


@pytest.mark.parametrize(
    "size",
    [
        {"own_tokens": 2},
        {"own_tokens": 400},
        {"own_tokens": 992},
        {"own_tokens": 5000},
        {"rows": 64, "own_tokens": 1},
        {"state": "s"},
    ],
    ids=["small", "two a batch", "one a batch", "over the limit", "all rows", "one state"],
)
@pytest.mark.parametrize("own", [2, 992, 5000])
def test_a_flood_does_not_starve_a_single_request(size: dict[str, Any], own: int) -> None:
    """1,000 jobs of one caller came first; the other's only one is in the second batch at last."""
    queue = Queue(tokens_max=1000)
    for _ in range(1000):
        queue.add("flood", **size)
    queue.add("single", "single", own_tokens=own)

    assert "single" in queue.batch() + queue.batch()


def test_a_large_job_is_not_passed_for_ever() -> None:
    """It never fits beside others, and smaller ones of many callers keep coming."""
    queue = Queue(tokens_max=100)
    for n in range(5):
        queue.add(f"other{n}")
    queue.add("large", "large", own_tokens=90)
    taken: list[str] = []
    batches = 0
    while "large" not in taken:
        taken = queue.batch()
        batches += 1
        for n in range(10):
            queue.add(f"other{n}")

    # Every second batch begins with the oldest job, and five are older.
    assert batches <= 10


def test_an_abandoned_job_is_dropped_wherever_it_stands() -> None:
    """At the front, in the middle, of the batch's state: not handed out, and not the oldest."""
    queue = Queue()
    jobs = [queue.add("a", state="s" if n % 2 else None) for n in range(6)]
    for n in (0, 3, 4):
        jobs[n].future.cancel()

    assert queue.batcher.oldest_enqueued_s() == 1.0
    assert queue.batch() == ["1", "5", "2"]
    assert queue.batch() == []
    assert (len(queue.batcher), queue.batcher.oldest_enqueued_s()) == (0, None)


def test_callers_who_all_gave_up_keep_nobody_waiting() -> None:
    """The turn of a caller without a live job is the next caller's."""
    queue = Queue(rows_max=1)
    gone = [queue.add(caller) for caller in "ab"]
    queue.add("c", "c0")
    queue.add("c", "c1")
    assert queue.batch() == ["0"]
    gone[1].future.cancel()

    assert [queue.batch(), queue.batch(), queue.batch()] == [["c0"], ["c1"], []]


def test_all_are_taken_at_once() -> None:
    """For an end that fails what waits; nothing is left behind, and it can go on."""
    queue = Queue()
    jobs = [queue.add(caller) for caller in "aba"]

    assert queue.batcher.take_all() == jobs
    assert len(queue.batcher) == 0
    assert queue.batcher.take_all() == []
    queue.add("a")
    assert queue.batch() == ["3"]


def test_a_job_can_be_let_go() -> None:
    """One that waits is gone at once, its neighbours stay; one taken before changes nothing."""
    queue = Queue(rows_max=1)
    jobs = [queue.add("a") for _ in range(3)]
    assert queue.batch() == ["0"]

    queue.batcher.discard(jobs[0])
    queue.batcher.discard(jobs[1])
    queue.batcher.discard(jobs[1])

    assert queue.batcher.take_all() == [jobs[2]]


SIZES = st.fixed_dictionaries(
    {
        "caller": st.sampled_from("abc"),
        "state": st.sampled_from(["s", "t", None]),
        "rows": st.integers(0, 4),
        "own_tokens": st.integers(1, 40),
    }
)
STEPS = st.lists(st.one_of(SIZES, st.just("take"), st.integers(0, 50)), max_size=60)


def cost_of(jobs: list[Job]) -> int:
    """Give the tokens of a batch: each state once, and the rows' own."""
    with_rows = [job.prepared for job in jobs if job.prepared.prompts]
    firsts = (each.prompts[0] for each in with_rows)
    states = {first.ids[0]: first.state_tokens for first in firsts if first}
    own = (len(p.ids) - p.state_tokens for each in with_rows for p in each.prompts if p)
    return sum(states.values()) + sum(own)


def check_batch(batch: list[Job], waiting: list[Job], *, tokens_max: int, rows_max: int) -> None:
    """Check a batch against the jobs that waited, in order of arrival, it included."""
    assert len(set(batch)) == len(batch)
    assert set(batch) <= set(waiting)
    assert bool(batch) == bool(waiting)
    rows = sum(len(job.prepared.prompts) for job in batch)
    assert len(batch) == 1 or (cost_of(batch) <= tokens_max and rows <= rows_max)
    left = [job for job in waiting if job not in batch]
    for job in batch:  # of one caller and one state: first come, first served
        key = (job.caller, job.prepared.state_key)
        older = [j for j in left if (j.caller, j.prepared.state_key) == key]
        assert all(other.enqueued_s > job.enqueued_s for other in older)
    oldest = {job.caller: job for job in reversed(left)}.values()
    states = {job.prepared.state_key for job in batch}
    for job in oldest:  # no room is left that a caller's oldest job would have filled
        size = len(job.prepared.prompts)
        full = rows + size > rows_max or cost_of([*batch, job]) > tokens_max
        assert full or not size or job.prepared.state_key in states


@given(steps=STEPS, tokens_max=st.integers(10, 120), rows_max=st.integers(1, 8))
def test_any_sequence_hands_out_each_live_job_once(
    steps: list[Any], tokens_max: int, rows_max: int
) -> None:
    """Against a plain list: limits hold, every second batch begins with the oldest, none is lost.

    A mapping is a job that arrives, a number says which waiting one gives up.
    """
    queue = Queue(tokens_max=tokens_max, rows_max=rows_max)
    waiting: list[Job] = []
    batches = 0
    for step in [*steps, *["take"] * len(steps)]:
        if step == "take":
            batch = queue.batcher.next_batch()
            check_batch(batch, waiting, tokens_max=tokens_max, rows_max=rows_max)
            assert not batch or batches % 2 or batch[0] is waiting[0]
            batches += bool(batch)
            waiting = [job for job in waiting if job not in batch]
        elif isinstance(step, int):
            if waiting:
                waiting.pop(step % len(waiting)).future.cancel()
        else:
            waiting.append(queue.add(**step))
        oldest_s = waiting[0].enqueued_s if waiting else None
        assert queue.batcher.oldest_enqueued_s() == oldest_s
    assert (waiting, len(queue.batcher)) == ([], 0)


def test_the_order_of_service_is_told_without_taking_any() -> None:
    """One of each caller, then the second ones; the rest of a flood comes last."""
    queue = Queue()
    for caller in ("a", "a", "a", "b", "c", "c"):
        queue.add(caller)

    told = [str(job.prepared.work.state) for job in queue.batcher.in_turn()]
    assert told == ["0", "3", "4", "1", "5", "2"]
    assert len(queue.batcher) == 6
