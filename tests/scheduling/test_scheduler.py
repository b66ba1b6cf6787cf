"""Jobs in order to the GPU thread, outcomes back, and an end that leaves nobody waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Self

import pytest
from scripted_engine import DONE, ScriptedEngine, prepared

from actor.engine.base import CanaryFailed, Outcome, Prepared, Scores
from actor.scheduling.admission import Admission
from actor.scheduling.gpu_thread import EngineDied, GpuThread
from actor.scheduling.job import Answer, Job
from actor.scheduling.lanes import Lanes
from actor.scheduling.scheduler import Scheduler
from schemas.errors import Draining, OutOfMemory, Overloaded, ScoringFailed


class Running:
    """A scheduler with its task and its thread."""

    def __init__(
        self, engine: ScriptedEngine, *, canary_s: float = 3600, rows_max: int = 64
    ) -> None:
        self.engine = engine
        self.gpu = GpuThread()
        self.admission = Admission(jobs_max=100, bytes_max=100, tokens_max=10_000)
        self.lanes = Lanes(tokens_max=10_000, rows_max=rows_max)
        self.scheduler = Scheduler(engine, self.gpu, self.admission, self.lanes, canary_s=canary_s)
        self.task = asyncio.create_task(self.scheduler.run())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.engine.gate.set()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.gpu.stop(within_s=5)

    async def busy_with(self, name: str) -> asyncio.Task[object]:
        """Ask ``name`` and wait until the engine works on it, held there."""
        self.engine.gate.clear()
        self.engine.entered.clear()
        task = self.ask(name)
        await asyncio.to_thread(self.engine.entered.wait)
        return task

    def ask(self, name: str, caller: str = "caller") -> asyncio.Task[object]:
        """Ask in a task of its own."""
        return asyncio.create_task(self.scheduler.answer(prepared(name), caller=caller))


async def test_jobs_are_scored_in_order_of_arrival() -> None:
    """Each caller gets scores and the time its job waited."""
    async with Running(ScriptedEngine(), rows_max=1) as running:
        first = await running.busy_with("0")
        rest = [running.ask(str(n)) for n in range(1, 6)]
        await asyncio.sleep(0)
        assert running.scheduler.in_flight == 1
        assert running.scheduler.oldest_ms() >= 0
        running.engine.gate.set()
        answers = await asyncio.gather(first, *rest)

    assert running.engine.scored == ["0", "1", "2", "3", "4", "5"]
    assert all(answer.queue_ms >= 0 for answer in answers)  # type: ignore[attr-defined]


async def test_a_batch_is_formed_when_the_gpu_is_free() -> None:
    """What arrives while one batch runs is the next, up to its limit; all are answered at once."""
    async with Running(ScriptedEngine(), rows_max=4) as running:
        first = await running.busy_with("first")
        rest = [running.ask(str(n)) for n in range(6)]
        await asyncio.sleep(0)
        running.engine.gate.set()
        await asyncio.gather(first, *rest)

    assert running.engine.batches == [1, 4, 2]


async def test_callers_take_turns_in_a_batch() -> None:
    """Two rows each: the one request of ``b`` does not wait for all of ``a``."""
    async with Running(ScriptedEngine(), rows_max=2) as running:
        first = await running.busy_with("first")
        rest = [running.ask(f"a{n}", "a") for n in range(4)] + [running.ask("b0", "b")]
        await asyncio.sleep(0)
        running.engine.gate.set()
        await asyncio.gather(first, *rest)

    assert running.engine.scored == ["first", "a0", "b0", "a1", "a2", "a3"]


async def test_a_neighbour_that_gives_up_costs_the_batch_nothing() -> None:
    """One caller of a running batch leaves at once; the others have their answers."""
    async with Running(ScriptedEngine()) as running:
        running.engine.gate.clear()
        together = [running.ask(str(n)) for n in range(3)]
        await asyncio.to_thread(running.engine.entered.wait)
        together[1].cancel()
        await asyncio.gather(together[1], return_exceptions=True)
        assert running.scheduler.in_flight == 3
        running.engine.gate.set()
        outcomes = await asyncio.gather(*together, return_exceptions=True)

    assert [type(each) for each in outcomes] == [Answer, asyncio.CancelledError, Answer]
    assert running.engine.batches == [3]


async def test_one_canary_follows_a_batch_with_failures() -> None:
    """Errors reach their callers alone, and the model is asked once whether it still knows."""
    engine = ScriptedEngine({"oom": OutOfMemory(), "failed": ScoringFailed()})
    async with Running(engine) as running:
        first = await running.busy_with("first")
        asked = [running.ask(name) for name in ("good", "oom", "failed", "fine")]
        await asyncio.sleep(0)
        engine.gate.set()
        outcomes = await asyncio.gather(first, *asked, return_exceptions=True)
        await running.ask("next")

    assert [type(each) for each in outcomes] == [Answer, Answer, OutOfMemory, ScoringFailed, Answer]
    assert engine.canaries == 1


async def test_a_job_that_cannot_make_its_deadline_is_told_at_once() -> None:
    """Ten tokens take a minute: of two that wait behind it, the one with two minutes has time.

    The other has half a minute left, and is not kept until it is over.
    """
    async with Running(ScriptedEngine(), rows_max=1) as running:
        first = await running.busy_with("first")
        now_s = time.monotonic()
        late, patient = (
            asyncio.create_task(
                running.scheduler.answer(
                    prepared(name), caller="caller", deadline_s=now_s + seconds
                )
            )
            for name, seconds in (("late", 30), ("patient", 120))
        )
        await asyncio.sleep(0)
        running.admission.observe(60, jobs=1, tokens=10)  # less a fifth once the first is done
        running.engine.gate.set()
        outcomes = await asyncio.gather(first, late, patient, return_exceptions=True)

    assert [type(each) for each in outcomes] == [Answer, Overloaded, Answer]
    assert running.engine.scored == ["first", "patient"]


async def test_a_flood_does_not_make_another_caller_late() -> None:
    """Nine jobs of a minute each stand before it; it is the second to be served all the same."""
    async with Running(ScriptedEngine(), rows_max=1) as running:
        first = await running.busy_with("first")
        flood = [running.ask(f"a{number}", "a") for number in range(9)]
        await asyncio.sleep(0)
        soon = time.monotonic() + 150
        asked = running.scheduler.answer(prepared("b"), caller="b", deadline_s=soon)
        other = asyncio.create_task(asked)
        await asyncio.sleep(0)
        running.admission.observe(60, jobs=1, tokens=10)  # less a fifth once the first is done
        running.engine.gate.set()
        outcomes = await asyncio.gather(first, *flood, other)

    assert all(isinstance(each, Answer) for each in outcomes)
    assert running.engine.scored.index("b") <= 3


class LosingLanes(Lanes):
    """Lanes with a bug: what it took is gone."""

    def next_batch(self) -> list[Job]:
        if super().next_batch():
            raise ZeroDivisionError
        return []


async def test_a_job_that_a_bug_lost_is_still_answered() -> None:
    """Taken from the queue and never handed over: its caller hears when the run ends."""
    async with Running(ScriptedEngine()) as running:
        running.scheduler._lanes = LosingLanes(tokens_max=100, rows_max=1)
        asked = [running.ask("lost"), running.ask("waits")]

        with pytest.raises(ZeroDivisionError):
            await running.task
        outcomes = await asyncio.gather(*asked, return_exceptions=True)

    assert [type(each) for each in outcomes] == [Draining, Draining]
    assert running.scheduler._pending == set()


async def test_an_abandoned_job_never_reaches_the_engine() -> None:
    """A caller whose deadline passed in the queue costs the GPU nothing."""
    async with Running(ScriptedEngine()) as running:
        first = await running.busy_with("first")
        abandoned, kept = running.ask("abandoned"), running.ask("kept")
        await asyncio.sleep(0)
        abandoned.cancel()
        await asyncio.gather(abandoned, return_exceptions=True)
        assert len(running.lanes) == 1  # what it held went with its permit
        running.engine.gate.set()
        await asyncio.gather(first, kept)

    assert running.engine.scored == ["first", "kept"]


@pytest.mark.parametrize(
    ("outcome", "canaries"),
    [
        (DONE, 0),
        (OutOfMemory(), 1),
        (ScoringFailed(), 1),
        (Scores((OutOfMemory(),), 1.0, 1, 0), 1),
        (Scores((ScoringFailed(),), 1.0, 1, 0), 1),
        (Draining(), 0),
    ],
    ids=["done", "oom", "failed", "oom inside", "failed inside", "another error"],
)
async def test_the_canary_is_asked_after_every_engine_error(
    outcome: Outcome, canaries: int
) -> None:
    """Also when the error is inside a shared result; not when the engine is not at fault."""
    async with Running(ScriptedEngine({"x": outcome})) as running:
        await asyncio.gather(running.ask("x"), return_exceptions=True)
        await running.ask("next")

        assert running.engine.canaries == canaries
        assert running.scheduler.canary_runs == canaries


async def test_an_error_is_raised_to_its_caller_alone() -> None:
    """The next job is answered."""
    async with Running(ScriptedEngine({"bad": OutOfMemory()})) as running:
        bad, good = running.ask("bad"), running.ask("good")

        with pytest.raises(OutOfMemory):
            await bad
        assert await good


async def test_the_canary_is_asked_when_idle() -> None:
    """After canary_s without a job, again and again."""
    async with Running(ScriptedEngine(), canary_s=0.01) as running:
        assert await asyncio.to_thread(running.engine.sang_thrice.wait, 10)
        await running.ask("anything")

        assert running.scheduler.canary_runs >= 3
        assert running.scheduler.canary_ok is not None


async def test_the_canary_is_asked_while_jobs_never_cease() -> None:
    """When it is due it goes before the next batch, however many wait."""
    async with Running(ScriptedEngine(), canary_s=0.01, rows_max=1) as running:
        first = await running.busy_with("first")
        rest = [running.ask(str(number)) for number in range(500)]
        await asyncio.to_thread(time.sleep, 0.02)
        running.engine.gate.set()
        await first
        await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED)

        assert running.scheduler.canary_runs >= 1
        assert not all(each.done() for each in rest)
        await asyncio.gather(*rest)


async def test_a_failed_canary_ends_the_run_and_fails_what_waits() -> None:
    """Fail closed: no further job reaches a model that answers wrongly."""
    engine = ScriptedEngine({"bad": ScoringFailed()})
    engine.canary_fails = True
    async with Running(engine) as running:
        bad = await running.busy_with("bad")
        waiting = [running.ask(str(n)) for n in range(3)]
        await asyncio.sleep(0)
        engine.gate.set()

        with pytest.raises(CanaryFailed):
            await running.task
        outcomes = await asyncio.gather(bad, *waiting, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [ScoringFailed, *[Draining] * 3]
    assert engine.scored == ["bad"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_the_death_of_the_engine_fails_all_and_ends_the_run() -> None:
    """The running job is told ``scoring_failed``, the waiting ones may go elsewhere."""
    async with Running(ScriptedEngine({"dies": SystemExit})) as running:
        dying = await running.busy_with("dies")
        waiting = [running.ask(str(n)) for n in range(3)]
        await asyncio.sleep(0)
        running.engine.gate.set()

        with pytest.raises(EngineDied):
            await running.task
        outcomes = await asyncio.gather(dying, *waiting, return_exceptions=True)
        with pytest.raises(Draining):
            await running.scheduler.answer(prepared("later"), caller="caller")

    assert [type(outcome) for outcome in outcomes] == [ScoringFailed, *[Draining] * 3]


async def test_closing_refuses_what_waits_and_lets_the_running_one_finish() -> None:
    """A drain cut short: the job on the GPU still has its answer."""
    async with Running(ScriptedEngine()) as running:
        first, second = await running.busy_with("first"), running.ask("second")
        await asyncio.sleep(0)

        running.scheduler.close()
        running.engine.gate.set()

        assert await first
        with pytest.raises(Draining):
            await second


async def test_one_callers_waiting_jobs_can_be_released() -> None:
    """For another actor to take them; what runs goes on, and so do the jobs of others."""
    async with Running(ScriptedEngine(), rows_max=1) as running:
        first = await running.busy_with("runs")
        mine = [running.ask(name, caller="caller") for name in ("a", "b")]
        other = running.ask("other", caller="other")
        await asyncio.sleep(0)
        running.scheduler.release("caller")
        refused = await asyncio.gather(*mine, return_exceptions=True)
        running.engine.gate.set()
        await asyncio.gather(first, other)

    assert all(isinstance(each, Draining) for each in refused)
    assert running.engine.scored == ["runs", "other"]


async def test_the_wait_in_the_queue_is_told() -> None:
    """From the job's arrival to the start of its scoring, on the loop's clock."""
    loop = asyncio.get_running_loop()
    async with Running(ScriptedEngine()) as running:
        first = await running.busy_with("first")
        before_s = loop.time()
        second = running.ask("second")
        await asyncio.sleep(0)
        arrived_s = loop.time()
        assert running.scheduler.oldest_ms() >= 0
        running.engine.entered.clear()
        held_s = loop.time()
        running.engine.gate.set()
        await first
        answer = await second
        after_s = loop.time()

    queue_ms = answer.queue_ms  # type: ignore[attr-defined]
    assert (held_s - arrived_s) * 1000 <= queue_ms <= (after_s - before_s) * 1000


async def test_the_scheduler_tells_admission_how_long_each_took() -> None:
    """By request and by token, ten of which one request has: the refusals' time rests on it."""
    async with Running(ScriptedEngine()) as running:
        await running.ask("x")

        seconds_each = running.admission._each.seconds
        assert seconds_each > 0
        assert running.admission.seconds_for(1) == pytest.approx(seconds_each / 10)


@pytest.mark.parametrize("outcome", [ZeroDivisionError, StopIteration], ids=lambda e: e.__name__)
async def test_an_engine_that_breaks_its_promise_ends_the_run(
    outcome: type[BaseException],
) -> None:
    """Score raises nothing expected: what it raises ends the run, and nobody is left waiting."""
    async with Running(ScriptedEngine({"bad": outcome})) as running:
        bad = await running.busy_with("bad")
        waiting = running.ask("waiting")
        await asyncio.sleep(0)
        running.engine.gate.set()

        with pytest.raises((ZeroDivisionError, RuntimeError)):
            await running.task
        outcomes = await asyncio.gather(bad, waiting, return_exceptions=True)

    assert [type(each) for each in outcomes] == [ScoringFailed, Draining]


class ForgetfulEngine(ScriptedEngine):
    """An engine that gives no outcome."""

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        super().score(batch)
        return []


async def test_a_job_without_an_outcome_is_failed() -> None:
    """An engine with too few outcomes is a bug; its caller still hears."""
    async with Running(ForgetfulEngine()) as running:
        asked = running.ask("x")

        with pytest.raises(ValueError, match="zip"):
            await running.task
        with pytest.raises(ScoringFailed):
            await asked


async def test_cancelling_the_run_fails_what_is_left() -> None:
    """The end of a drain: the running job is told ``scoring_failed``, the rest ``draining``."""
    async with Running(ScriptedEngine()) as running:
        first = await running.busy_with("first")
        second = running.ask("second")
        await asyncio.sleep(0)
        running.task.cancel()

        outcomes = await asyncio.gather(first, second, return_exceptions=True)

    assert [type(each) for each in outcomes] == [ScoringFailed, Draining]
