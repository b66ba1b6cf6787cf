"""The worker thread: each request its own result, whatever becomes of its neighbours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from scripted_engine import prepared

from actor.engine.base import Prepared, Work
from actor.scheduling.prepare_thread import TOGETHER_MAX, PrepareThread
from schemas.errors import Invalid


def work(name: str) -> Work:
    """Give work that only its name tells apart."""
    return Work(True, name, (), ())


class Gate:
    """Prepares on its thread when it is told to; knows what it prepared and on which thread."""

    def __init__(self, answer: Callable[[str], Prepared] = prepared) -> None:
        self.answer = answer
        self.open = threading.Event()
        self.entered = threading.Event()
        self.seen: list[str] = []
        self.threads: set[int] = set()

    def __call__(self, asked: Work) -> Prepared:
        self.entered.set()
        self.open.wait()
        self.threads.add(threading.get_ident())
        self.seen.append(str(asked.state))
        return self.answer(str(asked.state))


async def test_each_gets_its_own_result_in_order_on_one_other_thread() -> None:
    """More than go in one hand-off, all at once."""
    gate = Gate()
    gate.open.set()
    thread = PrepareThread(gate)
    names = [f"{n}" for n in range(2 * TOGETHER_MAX + 5)]

    results = await asyncio.gather(*(thread.prepare(work(name)) for name in names))

    assert [result.work.state for result in results] == names
    assert gate.seen == names
    assert len(gate.threads) == 1
    assert gate.threads != {threading.get_ident()}
    thread.close()


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (Invalid("No.", field="f"), Invalid),
        (KeyError("secret"), RuntimeError),
        (TimeoutError(), RuntimeError),
        (StopIteration(), RuntimeError),
        (SystemExit(), RuntimeError),
    ],
)
async def test_one_that_fails_has_its_error_and_its_neighbours_their_results(
    error: BaseException, seen: type[Exception]
) -> None:
    """Errors of the contract come as they are, all others as an ordinary one; the thread lives."""

    def answer(name: str) -> Prepared:
        if name == "bad":
            raise error
        return prepared(name)

    gate = Gate(answer)
    gate.open.set()
    thread = PrepareThread(gate)

    results = await asyncio.gather(
        *(thread.prepare(work(name)) for name in ("a", "bad", "b")), return_exceptions=True
    )
    after = await thread.prepare(work("c"))

    assert [type(result) for result in results] == [Prepared, seen, Prepared]
    assert after.work.state == "c"
    thread.close()


async def test_who_gives_up_before_the_turn_is_not_prepared() -> None:
    """The one that runs goes on; the next hand-off has those that still wait."""
    gate = Gate()
    thread = PrepareThread(gate)
    first = asyncio.create_task(thread.prepare(work("first")))
    await asyncio.to_thread(gate.entered.wait)
    gone = asyncio.create_task(thread.prepare(work("gone")))
    stays = asyncio.create_task(thread.prepare(work("stays")))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    gate.open.set()

    assert (await first).work.state == "first"
    assert (await stays).work.state == "stays"
    assert gate.seen == ["first", "stays"]
    thread.close()


async def test_closing_lets_those_that_wait_go() -> None:
    """What was not handed over is cancelled, nobody waits for ever."""
    gate = Gate()
    thread = PrepareThread(gate)
    running = asyncio.create_task(thread.prepare(work("running")))
    await asyncio.to_thread(gate.entered.wait)
    waiting = asyncio.create_task(thread.prepare(work("waiting")))
    await asyncio.sleep(0)

    thread.close()
    gate.open.set()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await running).work.state == "running"
