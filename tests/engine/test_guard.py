"""What the scorer raises leaves the guard as one of two errors, and leaves no tensor behind."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import pytest
from fake_torch import GIB, FakeTorch
from structlog.testing import capture_logs

from actor.engine.guard import guarded, is_out_of_memory
from actor.engine.memory import Device, DeviceMemory
from schemas.errors import OutOfMemory, ScoringFailed, SemifError

CARD = Device("cuda:0", "Fake", 0, 8 * GIB)


def memory_of(torch: FakeTorch) -> DeviceMemory:
    """Give a settled memory."""
    memory = DeviceMemory(torch, CARD, cap_bytes=8 * GIB)
    memory.settle()
    torch.cuda.calls.clear()
    return memory


OUT_OF_MEMORY = (
    FakeTorch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuBLAS: out of memory"),
    RuntimeError("CUDA error: out of memory"),
    MemoryError("no room for a Python object"),
)
OTHER = (
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
    ValueError("Need at least two finite scores"),
    KeyError("out of memory"),
    RecursionError("maximum recursion depth exceeded"),
)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=str)
def test_every_kind_of_oom_is_out_of_memory(error: Exception) -> None:
    """Torch's own error, and the libraries' that only their text tells."""
    assert is_out_of_memory(FakeTorch(), error)


def test_a_host_without_memory_is_out_of_memory() -> None:
    """Torch's allocator for the CPU has no error type of its own; a petabyte makes it raise."""
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)

    assert is_out_of_memory(torch, caught.value)


@pytest.mark.parametrize("error", OTHER, ids=str)
def test_everything_else_is_scoring_failed(error: Exception) -> None:
    """A text about memory in another type is no OOM; SemIf's ValueError is the engine's fault."""
    torch = FakeTorch()

    with pytest.raises(ScoringFailed):
        guarded(torch, memory_of(torch), lambda: raise_(error))


def raise_(error: Exception) -> None:
    """Raise ``error``."""
    raise error


class Leaky(RuntimeError):
    """An error that holds a tensor, as a library's might."""

    def __init__(self, message: str, tensor: Any) -> None:
        super().__init__(message)
        self.tensor = tensor


@pytest.mark.parametrize(
    ("message", "expected"),
    [("CUDA out of memory", OutOfMemory), ("illegal memory access", ScoringFailed)],
)
def test_the_failed_requests_tensors_are_gone_before_the_error_leaves(
    message: str, expected: type[SemifError]
) -> None:
    """Tensors in frames, in the exception and in a cycle die before the cache is emptied."""
    import torch as real_torch

    torch = FakeTorch()
    memory = memory_of(torch)
    references: list[weakref.ref[Any]] = []
    dead_when_emptied: list[bool] = []
    torch.cuda.on_empty_cache = lambda: dead_when_emptied.extend(r() is None for r in references)

    def inner() -> None:
        in_frame, in_error, in_cycle = (real_torch.ones(8) for _ in range(3))
        cycle: dict[str, Any] = {"tensor": in_cycle}
        cycle["self"] = cycle
        references.extend(map(weakref.ref, (in_frame, in_error, in_cycle)))
        raise Leaky(message, in_error)

    def outer() -> None:
        in_outer_frame = real_torch.ones(8)
        references.append(weakref.ref(in_outer_frame))
        try:
            inner()
        except Leaky as error:
            raise RuntimeError(message) from error

    with pytest.raises(expected) as caught:
        guarded(torch, memory, outer)

    assert dead_when_emptied == [True] * 4
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_the_process_goes_on_after_a_failure() -> None:
    """The next call is answered."""
    torch = FakeTorch()
    memory = memory_of(torch)
    with pytest.raises(OutOfMemory):
        guarded(torch, memory, lambda: raise_(FakeTorch.OutOfMemoryError("full")))

    assert guarded(torch, memory, lambda: "answer") == "answer"


def test_the_log_has_the_text_and_no_object_that_lives() -> None:
    """A traceback object in a log record would keep the tensors; its text does not."""
    torch = FakeTorch()

    with capture_logs() as logs, pytest.raises(ScoringFailed):
        guarded(torch, memory_of(torch), lambda: raise_(RuntimeError("the reason")))

    [line] = logs
    assert line["text"] == "the reason"
    assert line["traceback"].startswith("RuntimeError\n")
    assert all(isinstance(value, str) for value in line.values())


def test_the_text_of_other_errors_is_not_logged() -> None:
    """A ValueError or KeyError may quote a request; what PyTorch raises is about shapes."""
    torch = FakeTorch()

    for error in (ValueError("payload"), KeyError("payload")):
        with capture_logs() as logs, pytest.raises(ScoringFailed):
            guarded(torch, memory_of(torch), partial(raise_, error))
        assert "payload" not in str(logs)
        assert type(error).__name__ in logs[0]["traceback"]


def test_success_gives_a_burst_back() -> None:
    """After a large request the memory above the slack returns to the driver."""
    torch = FakeTorch()
    memory = memory_of(torch)

    def burst() -> str:
        torch.cuda.reserved = 4 * GIB
        return "answer"

    assert guarded(torch, memory, burst) == "answer"
    assert torch.cuda.calls == [("empty_cache",)]


def fail_for_good() -> None:
    """Raise as every call into CUDA does after one that read where it may not."""
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    ("message", "expected"),
    [("CUDA out of memory", OutOfMemory), ("illegal memory access", ScoringFailed)],
)
def test_a_card_that_refuses_even_to_release_is_one_error(
    message: str, expected: type[SemifError]
) -> None:
    """``empty_cache`` fails too on a broken card; the call's failure is reported, alone."""
    torch = FakeTorch()
    memory = memory_of(torch)
    torch.cuda.on_empty_cache = fail_for_good

    with capture_logs() as logs, pytest.raises(expected) as caught:
        guarded(torch, memory, lambda: raise_(RuntimeError(message)))

    assert [line["event"] for line in logs] == ["scoring failed", "memory not released"]
    assert caught.value.__context__ is None


def test_a_burst_that_cannot_be_given_back_is_a_failure() -> None:
    """An error that shows itself after the answer is still the engine's, so the canary runs."""
    torch = FakeTorch()
    memory = memory_of(torch)
    torch.cuda.reserved = 4 * GIB
    torch.cuda.on_empty_cache = fail_for_good

    with pytest.raises(ScoringFailed):
        guarded(torch, memory, lambda: "answer")


def test_what_is_no_exception_is_not_caught() -> None:
    """SystemExit is the end of the thread, which the scheduler handles."""
    torch = FakeTorch()

    def leave() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        guarded(torch, memory_of(torch), leave)
