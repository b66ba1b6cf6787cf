"""Attention operators that also return the log-sum-exp, by which parts can be merged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Kernel", "kernel_for", "plain_kernel"]

Tensor = Any
Kernel = Callable[[Tensor, Tensor, Tensor, bool, float], tuple[Tensor, Tensor]]
"""(query, key, value, causal, scale) -> (output, log-sum-exp in fp32): ``[1, heads, tokens, size]``
and ``[1, heads, tokens]``. As many key heads as query heads; when causal, as many keys as queries.
"""
AGREEMENT = 0.05
"""Largest difference from the plain kernel on numbers of about 1, in any format."""


def kernel_for(device_type: str, dtype: Any, head_size: int) -> tuple[str, Kernel]:
    """Give the fastest kernel that returns a log-sum-exp, with its name; ``plain`` is the last.

    Each candidate must give what the plain kernel gives on a small input.
    """
    candidates: list[tuple[str, Kernel]] = []
    if device_type == "cpu":
        candidates.append(("flash-cpu", _flash_cpu()))
    else:
        candidates += [("flash", _flash_cuda()), ("efficient", _efficient_cuda())]
    for name, kernel in candidates:
        if _agrees(kernel, device_type, dtype, head_size):
            return name, kernel
    return "plain", plain_kernel


def _agrees(kernel: Kernel, device_type: str, dtype: Any, head_size: int) -> bool:
    generator = torch.Generator().manual_seed(7)
    query, key, value = (
        torch.randn((1, 2, 33, head_size), generator=generator).to(device_type, dtype)
        for _ in range(3)
    )
    for causal in (True, False):
        try:
            found = kernel(query, key, value, causal, head_size**-0.5)
        except (RuntimeError, AttributeError):  # not built for this dtype, size or card; or gone
            return False
        expected = plain_kernel(query, key, value, causal, head_size**-0.5)
        for got, want in zip(found, expected, strict=True):
            if got.shape != want.shape or not torch.allclose(got.float(), want.float(), atol=0.05):
                return False
    return True


def _flash_cpu() -> Kernel:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001

    def kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Any:
        return operator(q, k, v, 0.0, causal, scale=scale)

    return kernel


def _flash_cuda() -> Kernel:
    operator = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001

    def kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Any:
        return operator(q, k, v, 0.0, causal, False, scale=scale)[:2]

    return kernel


def _efficient_cuda() -> Kernel:
    operator = torch.ops.aten._scaled_dot_product_efficient_attention  # noqa: SLF001

    def kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Any:
        output, weight = operator(q, k, v, None, True, 0.0, causal, scale=scale)[:2]
        return output, weight[..., : q.shape[2]]  # its log-sum-exp is padded to a multiple of 32

    return kernel


def plain_kernel(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend by the formula, in fp32: needs memory for every pair of tokens."""
    scores = (query.float() @ key.float().transpose(-1, -2)) * scale
    if causal:
        scores.masked_fill_(scores.new_ones(scores.shape[-2:]).triu_(1).bool(), -math.inf)
    weight = scores.logsumexp(-1)
    output = (scores - weight.unsqueeze(-1)).exp_() @ value.float()
    return output.to(query.dtype), weight
