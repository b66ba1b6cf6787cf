"""A torch with a card in it, for machines without one: what the CUDA branches call, recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

GIB = 1024**3


class FakeProperties:
    """Facts of a card."""

    name = "Fake H200"
    total_memory = 8 * GIB


class FakeCuda:
    """``torch.cuda`` with one card of 8 GiB. Every call that changes something is recorded."""

    def __init__(
        self,
        *,
        cards: int = 1,
        architectures: tuple[str, ...] = ("sm_80", "sm_90"),
        capability: tuple[int, int] = (9, 0),
    ) -> None:
        self.cards = cards
        self.capability = capability
        self.architectures = architectures
        self.calls: list[tuple[Any, ...]] = []
        self.reserved = 0
        self.allocated = 0
        self.on_empty_cache: Callable[[], None] = lambda: None

    def is_available(self) -> bool:
        return self.cards > 0

    def device_count(self) -> int:
        return self.cards

    def get_device_capability(self, index: int) -> tuple[int, int]:
        assert index < self.cards
        return self.capability

    def get_arch_list(self) -> list[str]:
        return list(self.architectures)

    def get_device_properties(self, _index: int) -> FakeProperties:
        return FakeProperties()

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        self.calls.append(("cap", fraction, index))

    def memory_reserved(self, _index: int) -> int:
        return self.reserved

    def memory_allocated(self, _index: int) -> int:
        return self.allocated

    def empty_cache(self) -> None:
        self.calls.append(("empty_cache",))
        self.on_empty_cache()


class FakeTensor:
    """A matrix of one value."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __matmul__(self, other: FakeTensor) -> FakeTensor:
        return FakeTensor(8 * self.value * other.value)

    def sum(self) -> FakeTensor:
        return FakeTensor(64 * self.value)

    def item(self) -> float:
        return self.value


class FakeTorch:
    """The module."""

    __version__ = "2.13.0+fake"
    bfloat16 = "bfloat16"

    class OutOfMemoryError(RuntimeError):
        """As torch's own, a RuntimeError."""

    def __init__(self, cuda: FakeCuda | None = None, *, kernels_work: bool = True) -> None:
        self.cuda = cuda or FakeCuda()
        self.kernels_work = kernels_work

    def ones(self, _shape: tuple[int, int], *, device: str, dtype: str) -> FakeTensor:
        self.cuda.calls.append(("kernel", device, dtype))
        return FakeTensor(1.0 if self.kernels_work else float("nan"))
