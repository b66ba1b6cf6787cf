"""What stands between the scorer and everyone else (design 6.5).

Whatever the scorer raises leaves here as a :class:`SemifError` that holds no tensor, and the
process goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from actor.engine.memory import DeviceMemory
from actor.telemetry.traces import trace_of
from schemas.errors import OutOfMemory, ScoringFailed, SemifError

__all__ = ["guarded"]

Result = TypeVar("Result")

_log = structlog.get_logger()


def guarded(torch: Any, memory: DeviceMemory, call: Callable[[], Result]) -> Result:
    """Run ``call``; raises :class:`OutOfMemory` or :class:`ScoringFailed`, without a chain.

    The recovery stands outside the ``except`` block on purpose: while an exception is handled its
    traceback keeps every frame alive, and with them the tensors that filled the card
    (pytorch issues 18853 and 27600).

    A ``ValueError`` is no exception to this: the engine has run SemIf's own validation before the
    queue, so one that comes from the scorer (non-finite logits, for one) is not the caller's.
    """
    failure: SemifError
    try:
        result = call()
        memory.release_burst()
    except Exception as error:  # noqa: BLE001 - any failure must become exactly one reply
        failure = OutOfMemory() if is_out_of_memory(torch, error) else ScoringFailed()
        # Texts, never the traceback object: a log record may outlive the request.
        _log.error(
            "scoring failed", code=failure.code, text=text_of(error), traceback=trace_of(error)
        )
    else:
        return result
    _release(memory)
    raise failure


def _release(memory: DeviceMemory) -> None:
    """Release what the failed call held; after an illegal access the card refuses this too."""
    try:
        memory.release()
    except Exception as error:  # noqa: BLE001 - the call's own failure is the one to report
        _log.error("memory not released", text=text_of(error), traceback=trace_of(error))


def text_of(error: BaseException) -> str | None:
    """Give the words of PyTorch and its libraries, which are about devices and shapes.

    Errors of other types may quote a request.
    """
    return str(error) if isinstance(error, RuntimeError | MemoryError) else None


def is_out_of_memory(torch: Any, error: BaseException) -> bool:
    """True for PyTorch's own error, for cuBLAS or cuDNN without a workspace, and on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    if isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text:
        return "can't allocate memory" in text
    if isinstance(error, RuntimeError) and ("CUBLAS" in text or "CUDNN" in text.upper()):
        return "ALLOC_FAILED" in text or "out of memory" in text.lower()
    return isinstance(error, RuntimeError) and "out of memory" in text.lower()
