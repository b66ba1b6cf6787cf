"""The one thread that calls the model."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from functools import partial

import pytest

from actor.scheduling.gpu_thread import EngineDied, GpuThread


@pytest.fixture
async def gpu() -> AsyncIterator[GpuThread]:
    """Give a thread, and end it."""
    thread = GpuThread()
    yield thread
    await thread.stop(within_s=5)


async def test_results_and_exceptions_come_back(gpu: GpuThread) -> None:
    """What a call gives or raises is what its caller gets; the thread lives on."""

    def fails() -> None:
        raise KeyError("missing")

    assert await gpu.run(lambda: 42) == 42
    with pytest.raises(KeyError, match="missing"):
        await gpu.run(fails)
    assert await gpu.run(lambda: 43) == 43


async def test_every_call_runs_on_one_thread_that_is_not_the_loops(gpu: GpuThread) -> None:
    """INV-2: one dedicated thread."""
    threads = {await gpu.run(threading.get_ident) for _ in range(5)}

    assert len(threads) == 1
    assert threads != {threading.get_ident()}


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_the_end_of_the_thread_is_told_to_everyone(error: type[BaseException]) -> None:
    """The running call and every later one raise EngineDied; nobody waits for ever."""
    gpu = GpuThread()

    def dies() -> None:
        raise error

    with pytest.raises(EngineDied):
        await gpu.run(dies)
    with pytest.raises(EngineDied):
        await gpu.run(lambda: 1)
    await gpu.stop(within_s=5)
    assert not gpu.alive


async def test_a_caller_that_gives_up_does_not_break_the_thread(gpu: GpuThread) -> None:
    """The result of an abandoned call is dropped; the next one is answered."""
    started, release = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        release.wait()

    abandoned = asyncio.create_task(gpu.run(slow))
    await asyncio.to_thread(started.wait)
    abandoned.cancel()
    release.set()

    assert await gpu.run(lambda: "next") == "next"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_call_handed_over_while_the_thread_ends_is_told_too() -> None:
    """A caller behind one that gave up does not wait for a thread that is no more."""
    gpu = GpuThread()
    started, release = threading.Event(), threading.Event()

    def dies() -> None:
        started.set()
        release.wait()
        raise SystemExit

    abandoned = asyncio.create_task(gpu.run(dies))
    await asyncio.to_thread(started.wait)
    abandoned.cancel()
    behind = asyncio.create_task(gpu.run(lambda: 1))
    await asyncio.sleep(0)
    release.set()

    with pytest.raises(EngineDied):
        await behind


async def test_an_exception_that_no_future_can_carry_still_reaches_the_caller(
    gpu: GpuThread,
) -> None:
    """A future refuses to hold StopIteration; the caller gets an error that names it."""

    def ends_early() -> None:
        next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await gpu.run(ends_early)

    assert isinstance(caught.value.__cause__, StopIteration)
    assert await gpu.run(lambda: "next") == "next"


class Result:
    """Something that can be weakly referenced."""


async def test_a_finished_calls_result_is_not_kept(gpu: GpuThread) -> None:
    """The thread holds nothing of a call that is over: its tensors could fill the card."""
    result = await gpu.run(Result)
    reference = weakref.ref(result)
    await gpu.run(lambda: None)

    del result

    assert reference() is None


async def test_what_a_failed_call_held_is_released_with_its_exception(gpu: GpuThread) -> None:
    """No circle through the traceback: no garbage collection is needed to free the tensors."""
    held: list[weakref.ref[Result]] = []

    def fails() -> None:
        tensor = Result()
        held.append(weakref.ref(tensor))
        raise KeyError

    async def fail() -> None:
        with pytest.raises(KeyError):
            await gpu.run(fails)

    gc.disable()
    try:
        await fail()
        await gpu.run(lambda: None)
        assert held[0]() is None
    finally:
        gc.enable()


async def test_what_a_call_brought_along_is_released_before_the_next(gpu: GpuThread) -> None:
    """The call itself is dropped too, while the thread waits for another."""
    brought = Result()
    reference = weakref.ref(brought)
    await gpu.run(partial(id, brought))
    await gpu.run(lambda: None)

    del brought

    assert reference() is None


async def test_a_stuck_call_is_left_behind() -> None:
    """Stop gives up in time and says so; a daemon thread does not keep the process."""
    gpu = GpuThread()
    started, release = threading.Event(), threading.Event()

    def stuck() -> None:
        started.set()
        release.wait()

    call = asyncio.create_task(gpu.run(stuck))
    await asyncio.to_thread(started.wait)

    stopped = await gpu.stop(within_s=0.05)

    assert not stopped
    assert gpu.alive
    release.set()
    await call
    await asyncio.to_thread(gpu._thread.join)


async def test_an_idle_thread_stops(gpu: GpuThread) -> None:
    """Asked to end, it ends; a call that comes later is told instead of left waiting."""
    assert await gpu.stop(within_s=5)
    assert not gpu.alive
    with pytest.raises(EngineDied):
        await gpu.run(lambda: 1)


async def test_a_thread_with_a_call_in_its_inbox_does_not_stop() -> None:
    """There is no room to ask; both calls are still answered."""
    gpu = GpuThread()
    started, release = threading.Event(), threading.Event()

    def stuck() -> None:
        started.set()
        release.wait()

    abandoned = asyncio.create_task(gpu.run(stuck))
    await asyncio.to_thread(started.wait)
    abandoned.cancel()
    behind = asyncio.create_task(gpu.run(lambda: "answered"))
    await asyncio.sleep(0)

    assert not await gpu.stop(within_s=0)

    release.set()
    assert await behind == "answered"
    assert await gpu.stop(within_s=5)


def test_a_thread_outlives_its_loop_without_harm() -> None:
    """A call left behind by a stop may end after the loop was closed; the thread takes it."""
    started, release = threading.Event(), threading.Event()

    def stuck() -> None:
        started.set()
        release.wait()

    async def leave_behind() -> GpuThread:
        gpu = GpuThread()
        call = asyncio.create_task(gpu.run(stuck))
        await asyncio.to_thread(started.wait)
        call.cancel()
        await gpu.stop(within_s=0)
        return gpu

    gpu = asyncio.run(leave_behind())
    release.set()
    gpu._thread.join(5)

    assert not gpu.alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_dead_thread_has_stopped(gpu: GpuThread) -> None:
    """However often it is asked, and though nobody takes what is put in its inbox any more."""

    def dies() -> None:
        raise SystemExit

    with pytest.raises(EngineDied):
        await gpu.run(dies)
    await asyncio.to_thread(gpu._thread.join)

    assert await gpu.stop(within_s=5)
    assert await gpu.stop(within_s=5)
