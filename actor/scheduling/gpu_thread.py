"""The one thread that calls the model (INV-2)."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
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
    (``SystemExit``, a bug in this loop) ends the thread: the
    call that runs and all later ones then raise :class:`EngineDied`, so nobody waits for ever.

    A daemon, because a call into CUDA cannot be cancelled: a stop that has waited long enough
    must be able to leave it behind.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.Queue[_Call | None] = queue.Queue(maxsize=1)
        self._closed = False
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
        if self._closed:
            raise EngineDied
        future: asyncio.Future[Result] = self._loop.create_future()
        self._inbox.put_nowait((call, future))
        try:
            return await future
        finally:
            # The traceback of the call's exception holds this frame, the future the exception:
            # a circle that would keep the call's tensors until a garbage collection.
            del future

    async def stop(self, *, within_s: float) -> bool:
        """Ask the thread to end; True when it did within ``within_s`` seconds.

        The running call is still answered, later ones raise :class:`EngineDied`.
        """
        self._closed = True
        try:
            self._inbox.put_nowait(None)
        except queue.Full:  # a call is still waiting behind the one that runs, or nobody takes any
            return not self._thread.is_alive()
        await asyncio.to_thread(self._thread.join, within_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            call, future = item
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - handed to the awaiting side whole
                self._on_loop(partial(_settle, future, None, error))
            except BaseException:
                self._on_loop(partial(self._die, future))
                raise
            else:
                self._on_loop(partial(_settle, future, result, None))
            # Names of a finished call would hold its tensors until the next one.
            del item, call, future
            result = None

    def _die(self, future: asyncio.Future[Any]) -> None:
        """Tell the call that ran, and one that was handed over while the thread ended.

        Called on the loop, as :meth:`run` is, so that no call slips in between.
        """
        self._closed = True
        _settle(future, None, EngineDied())
        while not self._inbox.empty():
            if waiting := self._inbox.get_nowait():
                _settle(waiting[1], None, EngineDied())

    def _on_loop(self, finish: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop is closed: the process is past waiting for answers
            self._closed = True


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if isinstance(error, StopIteration):  # no future can carry it, and its caller would wait on
        wrapped = RuntimeError("the call raised StopIteration")
        wrapped.__cause__ = error
        error = wrapped
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
