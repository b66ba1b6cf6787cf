"""Device memory: the cap before the weights, the resting footprint, and the way back to it.

``torch`` is a parameter everywhere, so that the CUDA branches can be tested on a machine without
a card.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actor.engine.ledger import Refuted

__all__ = ["GIB", "Device", "DeviceMemory", "find_device", "set_cap"]

GIB = 1024**3
BURST_SLACK_BYTES = 512 * 1024**2
"""Memory above the resting footprint that is kept for the next request (INV-4)."""


@dataclass(frozen=True, slots=True)
class Device:
    """The device asked for, found and usable. ``index`` is None on cpu."""

    name: str
    """``cpu`` or ``cuda:N``."""
    title: str
    index: int | None
    memory_bytes: int
    """Memory of the card; 0 on cpu."""


def find_device(torch: Any, wanted: str) -> Device:
    """Give the device named ``wanted``, never another one; raises :class:`Refuted`.

    A kernel runs on it: a build of PyTorch without binaries for the card would otherwise compile
    PTX at the first request, or fail there.
    """
    if wanted == "cpu":
        device = Device("cpu", _cpu_title(), None, 0)
    else:
        _, _, number = wanted.partition(":")
        index = int(number or 0)
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if index >= count:
            raise Refuted(
                f"SEMIF_DEVICE={wanted} asks for CUDA device {index}, but PyTorch "
                f"{torch.__version__} sees {count}. Check the driver, CUDA_VISIBLE_DEVICES and "
                "that the installed PyTorch is a CUDA build; or set SEMIF_DEVICE=cpu."
            )
        major, minor = torch.cuda.get_device_capability(index)
        built_for = torch.cuda.get_arch_list()
        # A kernel built for sm_XY also runs on a card of the same X and a higher Y (CUDA's binary
        # compatibility); stock wheels have sm_86 and no sm_89.
        if not any(f"sm_{major}{lower}" in built_for for lower in range(minor + 1)):
            raise Refuted(
                f"The card needs kernels for sm_{major}{minor}; this PyTorch has "
                f"{', '.join(built_for) or 'none'}. Install a build for the card."
            )
        properties = torch.cuda.get_device_properties(index)
        device = Device(f"cuda:{index}", properties.name, index, properties.total_memory)
    _run_kernel(torch, device)
    return device


def _cpu_title() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "cpu"
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "cpu")


def _run_kernel(torch: Any, device: Device) -> None:
    ones = torch.ones((8, 8), device=device.name, dtype=torch.bfloat16)
    total = float((ones @ ones).sum().item())
    if total != 512.0:  # noqa: PLR2004 - 8 x 8 entries of 8
        raise Refuted(f"A matrix product on {device.name} gave {total}, not 512.")


def set_cap(torch: Any, device: Device, cap_gib: float | None) -> int:
    """Cap the process's memory on the card and give the cap in bytes; 0 on cpu.

    Must run before the first weight lands. The cap holds for PyTorch's allocator; the CUDA
    context and library workspaces come on top (pytorch issue 58466), so leave room for them.
    """
    if device.index is None:
        return 0
    cap_bytes = device.memory_bytes if cap_gib is None else int(cap_gib * GIB)
    if cap_bytes > device.memory_bytes:
        raise Refuted(
            f"SEMIF_VRAM_CAP_GIB={cap_gib:g} does not fit: the card has "
            f"{device.memory_bytes / GIB:.2f} GiB in all."
        )
    torch.cuda.set_per_process_memory_fraction(cap_bytes / device.memory_bytes, device.index)
    return cap_bytes


class DeviceMemory:
    """How much memory the process holds on its device, and giving it back."""

    def __init__(self, torch: Any, device: Device, *, cap_bytes: int) -> None:
        self._cuda = torch.cuda
        self.device = device
        self.cap_bytes = cap_bytes
        self.resting_bytes = 0
        self.kept_bytes: Callable[[], int] = lambda: 0
        """Bytes that are held on purpose beside the resting footprint: the prefix cache's."""

    def allocated_bytes(self) -> int:
        """Bytes in live tensors; on cpu the process's resident memory."""
        if self.device.index is None:
            return _resident_bytes()
        return int(self._cuda.memory_allocated(self.device.index))

    def reserved_bytes(self) -> int:
        """Bytes held from the driver; on cpu the process's resident memory."""
        if self.device.index is None:
            return _resident_bytes()
        return int(self._cuda.memory_reserved(self.device.index))

    def settle(self) -> None:
        """Release everything unused and take what is left as the resting footprint."""
        self.release()
        self.resting_bytes = self.reserved_bytes()

    def release_burst(self) -> bool:
        """Give memory back when more than the slack is held; True when it did."""
        expected = self.resting_bytes + self.kept_bytes()
        if self.reserved_bytes() <= expected + BURST_SLACK_BYTES:
            return False
        self.release()
        return True

    def release(self) -> None:
        """Collect garbage, then hand every unused block back to the driver or the system."""
        gc.collect()
        if self.device.index is None:
            _trim_heap()
        else:
            self._cuda.empty_cache()


def _resident_bytes() -> int:
    """Resident memory from /proc; 0 where there is none (not Linux)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _trim_heap() -> None:
    """Ask glibc to return free heap pages; other C libraries do so by themselves."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
