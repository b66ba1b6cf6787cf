"""The worker thread that checks and tokenises requests, all that wait in one hand-off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from actor.engine.base import Prepared, Work
from schemas.errors import SemifError

__all__ = ["PrepareThread"]

TOGETHER_MAX = 32
"""Requests in one hand-off: the first of them waits for the last."""

_Waiting = tuple[Work, "asyncio.Future[Prepared]"]


class PrepareThread:
    """One worker: more would only take turns at the interpreter and at the tokenizer.

    A hand-off costs more than encoding a short prompt, so requests that come while the thread is
    busy go to it together. :meth:`prepare` and :meth:`close` are called on the event loop.
    """

    def __init__(self, prepare: Callable[[Work], Prepared]) -> None:
        self._prepare = prepare
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="encode")
        self._waiting: list[_Waiting] = []
        self._busy = False

    async def prepare(self, work: Work) -> Prepared:
        """Give what the engine makes of ``work``, or raise its exception."""
        future: asyncio.Future[Prepared] = self._loop.create_future()
        self._waiting.append((work, future))
        if not self._busy:
            self._hand_over()
        return await future

    def close(self) -> None:
        """Let the thread go; what it has not begun is cancelled."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            future.cancel()

    def _hand_over(self) -> None:
        together, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
        self._busy = True
        self._executor.submit(self._work, together)

    def _work(self, together: list[_Waiting]) -> None:
        results = [(future, self._one(work)) for work, future in together if not future.done()]
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._finish, results)

    def _finish(self, results: list[tuple[asyncio.Future[Prepared], Prepared | Exception]]) -> None:
        self._busy = False
        if self._waiting:
            self._hand_over()
        for future, result in results:
            if future.done():  # its caller gave up meanwhile
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _one(self, work: Work) -> Prepared | Exception:
        """Prepare one; everything unforeseen becomes an ordinary exception.

        A panic in the tokenizer's Rust is a ``BaseException``, a ``StopIteration`` cannot cross
        into a future, and a ``TimeoutError`` from below would read as the caller's deadline.
        """
        try:
            return self._prepare(work)
        except SemifError as error:
            return error
        except BaseException as error:  # noqa: BLE001 - see above
            failure = RuntimeError("the engine could not prepare the request")
            failure.__cause__ = error
            return failure
