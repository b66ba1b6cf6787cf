"""The one thread that calls the model."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator

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


class Result:
    """Something that can be weakly referenced."""


async def test_a_finished_calls_result_is_not_kept(gpu: GpuThread) -> None:
    """The thread holds nothing of a call that is over: its tensors could fill the card."""
    result = await gpu.run(Result)
    reference = weakref.ref(result)
    await gpu.run(lambda: None)

    del result

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
    """Asked to end, it ends."""
    assert await gpu.stop(within_s=5)
    assert not gpu.alive
