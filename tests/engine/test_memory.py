"""The card: found or refused, capped before anything lands on it, given back after bursts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_torch import GIB, FakeCuda, FakeTorch

from actor.engine.base import ProofFailed
from actor.engine.ledger import Ledger, Refuted
from actor.engine.memory import Device, DeviceMemory, find_device, set_cap
from actor.settings import Settings

CARD = Device("cuda:0", "Fake H200", 0, 8 * GIB)
MIB = 1024**2


@pytest.mark.parametrize(("wanted", "name"), [("cuda", "cuda:0"), ("cuda:1", "cuda:1")])
def test_the_card_asked_for_is_the_card_given(wanted: str, name: str) -> None:
    """``cuda`` is the first card, ``cuda:N`` the one of that number; a kernel runs on it."""
    torch = FakeTorch(FakeCuda(cards=2))

    device = find_device(torch, wanted)

    assert (device.name, device.title, device.memory_bytes) == (name, "Fake H200", 8 * GIB)
    assert torch.cuda.calls == [("kernel", name, "bfloat16")]


@pytest.mark.parametrize(("wanted", "cards"), [("cuda", 0), ("cuda:1", 1), ("cuda:7", 2)])
def test_a_card_that_is_not_there_is_refused(wanted: str, cards: int) -> None:
    """Never another card, never the CPU; the text says how many there are."""
    torch = FakeTorch(FakeCuda(cards=cards))

    with pytest.raises(Refuted, match=f"sees {cards}"):
        find_device(torch, wanted)

    assert torch.cuda.calls == []


def test_a_build_without_kernels_for_the_card_is_refused() -> None:
    """PTX for a newer card would compile at the first request, or fail there."""
    torch = FakeTorch(FakeCuda(architectures=("sm_70", "sm_80", "compute_90")))

    with pytest.raises(Refuted, match=r"sm_90.*sm_70, sm_80"):
        find_device(torch, "cuda")


@pytest.mark.parametrize(
    ("card", "built_for", "runs"),
    [
        ((8, 9), ("sm_80", "sm_86", "sm_90"), True),
        ((8, 9), ("sm_80",), True),
        ((8, 6), ("sm_89", "sm_90"), False),
        ((9, 0), ("sm_89",), False),
        ((9, 0), ("sm_90a", "compute_90"), False),
        ((12, 0), ("sm_90", "sm_120"), True),
        ((10, 3), ("sm_100",), True),
    ],
)
def test_kernels_for_a_lower_minor_version_run_on_the_card(
    card: tuple[int, int], built_for: tuple[str, ...], runs: bool
) -> None:
    """CUDA's binary compatibility: the same major version, the same minor one or a lower one."""
    torch = FakeTorch(FakeCuda(architectures=built_for, capability=card))

    if runs:
        assert find_device(torch, "cuda").name == "cuda:0"
    else:
        with pytest.raises(Refuted, match=f"sm_{card[0]}{card[1]}"):
            find_device(torch, "cuda")


def test_a_card_that_miscalculates_is_refused() -> None:
    """A kernel with a wrong result stops the start."""
    with pytest.raises(Refuted, match="not 512"):
        find_device(FakeTorch(kernels_work=False), "cuda")


def test_the_cpu_is_a_device_too() -> None:
    """Real torch on the CPU: found, no memory of its own, no cap."""
    import torch

    device = find_device(torch, "cpu")

    assert (device.name, device.index, device.memory_bytes) == ("cpu", None, 0)
    assert set_cap(torch, device, None) == 0


@pytest.mark.parametrize(("cap_gib", "fraction"), [(2.0, 0.25), (8.0, 1.0), (None, 1.0)])
def test_the_cap_is_a_fraction_of_the_whole_card(cap_gib: float | None, fraction: float) -> None:
    """Torch takes a fraction of the total; without a cap the whole card is it."""
    torch = FakeTorch()

    cap_bytes = set_cap(torch, CARD, cap_gib)

    assert torch.cuda.calls == [("cap", fraction, 0)]
    assert cap_bytes == fraction * 8 * GIB


def test_a_cap_that_does_not_fit_is_refused() -> None:
    """More than the card has is a mistake, not a wish to be rounded down."""
    torch = FakeTorch()

    with pytest.raises(Refuted, match=r"SEMIF_VRAM_CAP_GIB=9 .* 8\.00 GiB"):
        set_cap(torch, CARD, 9.0)

    assert torch.cuda.calls == []


def test_the_cap_is_set_before_the_weights_land(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the real order of proofs, the cap comes before anything is loaded."""
    import sys

    from actor.engine import proofs

    torch = FakeTorch()

    def load(*_arguments: Any, **_options: Any) -> None:
        torch.cuda.calls.append(("load",))
        raise Refuted("far enough")

    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(proofs, "load", load)
    from tiny_models import seal

    settings = Settings(model=seal(tmp_path), device="cuda", vram_cap_gib=4.0)

    with pytest.raises(ProofFailed, match="weights: far enough"):
        proofs.prove(settings, Ledger(lambda _proof: None))

    assert [call[0] for call in torch.cuda.calls] == ["kernel", "cap", "load"]


@pytest.mark.parametrize(("above_mib", "released"), [(0, False), (512, False), (513, True)])
def test_a_burst_goes_back_to_the_driver(above_mib: int, *, released: bool) -> None:
    """Up to 512 MiB above the resting footprint is kept for the next request, no more."""
    torch = FakeTorch()
    memory = DeviceMemory(torch, CARD, cap_bytes=8 * GIB)
    torch.cuda.reserved = GIB
    memory.settle()
    torch.cuda.calls.clear()

    torch.cuda.reserved = GIB + above_mib * MIB

    assert memory.release_burst() is released
    assert torch.cuda.calls == ([("empty_cache",)] if released else [])


def test_settling_measures_after_the_release() -> None:
    """The resting footprint is what is left when everything unused has gone back."""
    torch = FakeTorch()
    torch.cuda.reserved = 3 * GIB

    def give_back() -> None:
        torch.cuda.reserved = GIB

    torch.cuda.on_empty_cache = give_back
    memory = DeviceMemory(torch, CARD, cap_bytes=4 * GIB)
    torch.cuda.allocated = 7

    memory.settle()

    assert memory.resting_bytes == GIB
    assert (memory.allocated_bytes(), memory.reserved_bytes()) == (7, GIB)


def test_on_the_cpu_the_process_is_measured() -> None:
    """Resident memory is what the system says it is, and releasing it is no error."""
    import psutil
    import torch

    memory = DeviceMemory(torch, find_device(torch, "cpu"), cap_bytes=0)

    memory.settle()

    resident = psutil.Process().memory_info().rss
    assert abs(memory.reserved_bytes() - resident) < 64 * MIB
    assert not memory.release_burst()
