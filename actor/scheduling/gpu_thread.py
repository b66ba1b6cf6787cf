"""The one thread that calls the model (INV-2)."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["EngineDied", "GpuThread"]

Result = TypeVar("Result")


class EngineDied(Exception):
    """The GPU thread has ended; no call will be answered any more."""


_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class GpuThread:
    """A daemon thread with an inbox of one call.

    The event loop hands over a call and awaits its future; the thread hands the result back with
    one ``call_soon_threadsafe``. An ordinary exception belongs to the call. Anything else
    (``SystemExit``, ``MemoryError`` in the interpreter, a bug in this loop) ends the thread: the
    call that runs and all later ones then raise :class:`EngineDied`, so nobody waits for ever.

    A daemon, because a call into CUDA cannot be cancelled: a stop that has waited long enough
    must be able to leave it behind.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.Queue[_Call | None] = queue.Queue(maxsize=1)
        self._dead = False
        self._thread = threading.Thread(target=self._work, name="gpu", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the thread runs, idle or busy."""
        return self._thread.is_alive()

    async def run(self, call: Callable[[], Result]) -> Result:
        """Run ``call`` on the thread and give its result, or raise its exception.

        One call at a time: the caller awaits one before it makes the next. ``queue.Full`` is a
        bug in the caller.
        """
        if self._dead:
            raise EngineDied
        future: asyncio.Future[Result] = self._loop.create_future()
        self._inbox.put_nowait((call, future))
        return await future

    async def stop(self, *, within_s: float) -> bool:
        """Ask the thread to end; True when it did within ``within_s`` seconds."""
        try:
            self._inbox.put_nowait(None)
        except queue.Full:  # a call is still waiting behind the one that runs
            return False
        await asyncio.to_thread(self._thread.join, within_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            call, future = item
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - handed to the awaiting side whole
                self._hand_over(future, None, error)
            except BaseException:
                self._die(future)
                raise
            else:
                self._hand_over(future, result, None)
            # Names of a finished call would hold its tensors until the next one.
            del item, call, future
            result = None

    def _die(self, future: asyncio.Future[Any]) -> None:
        self._dead = True
        self._hand_over(future, None, EngineDied())

    def _hand_over(
        self, future: asyncio.Future[Any], result: object, error: BaseException | None
    ) -> None:
        def finish() -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop is closed: the process is past waiting for answers
            self._dead = True
