"""Attention with its log-sum-exp, against the formula in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from actor.engine import attention_kernels
from actor.engine.attention_kernels import kernel_for, plain_kernel

ATOL = {"float32": 1e-5, "bfloat16": 0.03}


def by_hand(query: Any, key: Any, value: Any, *, causal: bool, scale: float) -> tuple[Any, Any]:
    """Give output and log-sum-exp, one query at a time."""
    outputs, sums = torch.zeros_like(query, dtype=torch.float64), []
    for head in range(query.shape[1]):
        for at in range(query.shape[2]):
            keys = key[0, head, : at + 1 if causal else None].double()
            scores = keys @ query[0, head, at].double() * scale
            weights = scores.softmax(0)
            outputs[0, head, at] = weights @ value[0, head, : len(keys)].double()
            sums.append(scores.exp().sum().log())
    return outputs, torch.stack(sums).view(query.shape[:3])


@pytest.mark.parametrize("name", ["chosen", "plain"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (33, 33), (130, 130), (3, 70)])
def test_a_kernel_is_the_formula(
    name: str, causal: bool, dtype: str, queries: int, keys: int
) -> None:
    """Output and log-sum-exp, for lengths below and above the kernel's blocks."""
    if causal and queries != keys:
        queries = keys
    torch.manual_seed(3)
    kind = getattr(torch, dtype)
    kernel = plain_kernel if name == "plain" else kernel_for("cpu", kind, 16)[1]
    query = torch.randn(1, 2, queries, 16).to(kind)
    key, value = (torch.randn(1, 2, keys, 16).to(kind) for _ in range(2))

    output, weight = kernel(query, key, value, causal, 0.25)

    expected, sums = by_hand(query, key, value, causal=causal, scale=0.25)
    assert output.dtype is kind
    assert weight.dtype is torch.float32
    assert torch.allclose(output.double(), expected, atol=ATOL[dtype])
    assert torch.allclose(weight.double(), sums, atol=1e-4)


def test_the_cpu_has_a_fast_kernel() -> None:
    """Named in the start report and in every heartbeat."""
    assert kernel_for("cpu", torch.bfloat16, 64)[0] == "flash-cpu"


@pytest.mark.parametrize("fault", ["raises", "differs", "gone"])
def test_a_kernel_that_fails_or_differs_is_not_taken(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card without it, a build without it, wrong numbers: the plain one, by name."""

    def made() -> Any:
        def kernel(query: Any, key: Any, value: Any, causal: bool, scale: float) -> Any:
            if fault == "raises":
                raise RuntimeError("no kernel for this head size")
            if fault == "gone":
                raise AttributeError(fault)
            output, weight = plain_kernel(query, key, value, causal, scale)
            return output, weight + 1

        return kernel

    monkeypatch.setattr(attention_kernels, "_flash_cpu", made)

    assert kernel_for("cpu", torch.float32, 16) == ("plain", plain_kernel)
