"""Attention of many rows over few prefixes, each prefix held once (design 6.6).

A batch is a forest: tokens of all rows lie one after another, without padding, and each attends to
the constant head of every prompt, to the state its row is about, and to what precedes it in its own
segment. The three parts are computed apart and merged by their log-sum-exp, so no row has a copy
of another's keys and values. Registered with transformers as one more attention implementation;
outside of :func:`forest_attention` it is transformers' own SDPA, so SemIf's scorers see no change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from actor.engine.attention_kernels import Kernel

__all__ = ["NAME", "Branch", "Forest", "KeysValues", "forest_attention", "install"]

NAME = "semif_shared"
"""Name of the implementation in transformers' registry."""

Tensor = Any
KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one layer: ``[key-value heads, tokens, head size]`` each."""


@dataclass(slots=True)
class Branch:
    """The rows over one state."""

    leaves: slice
    """Where the tokens of the rows lie; each attends to the whole state."""
    state: slice | None = None
    """Where the state's own tokens lie, when they are computed in this forward pass."""
    known: Mapping[int, KeysValues] | None = None
    """The state's keys and values by layer, when they were computed before."""
    keep: bool = False
    """Collect the state's keys and values in ``collected``."""
    collected: dict[int, KeysValues] = field(default_factory=dict)


@dataclass(slots=True)
class Forest:
    """Who attends to whom in one forward pass."""

    kernel: Kernel
    segments: Sequence[slice]
    """Runs of tokens that are causal in themselves: states, and what follows a state in a row."""
    head: Mapping[int, KeysValues] | None
    """Keys and values by layer of the tokens that precede every segment."""
    branches: Sequence[Branch]


_FOREST: ContextVar[Forest | None] = ContextVar("semif_forest", default=None)


def install(model: Any) -> None:
    """Let ``model`` attend through this module. SemIf's functions get what they got before."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


@contextmanager
def forest_attention(forest: Forest) -> Iterator[None]:
    """Let the forward pass inside the block follow ``forest``."""
    token = _FOREST.set(forest)
    try:
        yield
    finally:
        _FOREST.reset(token)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend for one layer: ``[rows, heads, width, size]`` to ``[rows, width, heads, size]``."""
    forest = _FOREST.get()
    if forest is None:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, mask, **options
        )
        return result
    rows, heads, width, size = query.shape
    flat = [t.transpose(0, 1).reshape(t.shape[1], rows * width, size) for t in (query, key, value)]
    output = _attend(forest, module.layer_idx, module.scaling, flat)
    return output.view(rows, width, heads, size), None


def _attend(forest: Forest, layer: int, scale: float, projected: Sequence[Tensor]) -> Tensor:
    """Give the output ``[tokens, heads, size]`` of one layer for its query, key and value."""
    query, key, value = projected
    heads, tokens, size = query.shape
    output = query.new_empty(tokens, heads, size)
    weight = query.new_empty(tokens, heads, dtype=torch.float32)
    for part in forest.segments:
        output[part], weight[part] = _causal(
            forest.kernel, query[:, part], key[:, part], value[:, part], scale
        )
    if forest.head is not None:
        _merge(output, weight, _whole(forest.kernel, query, forest.head[layer], scale))
    for branch in forest.branches:
        own = branch.leaves
        if branch.known is not None:
            state = branch.known[layer]
        elif branch.state is not None:
            state = (key[:, branch.state], value[:, branch.state])
            if branch.keep:
                branch.collected[layer] = (state[0].clone(), state[1].clone())
        else:
            continue
        if own.stop > own.start:
            seen = _whole(forest.kernel, query[:, own], state, scale)
            _merge(output[own], weight[own], seen)
    return output


def _causal(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend within a segment; keys are repeated for the query heads that share them."""
    repeats = query.shape[0] // key.shape[0]
    key, value = (t.repeat_interleave(repeats, dim=0)[None] for t in (key, value))
    output, weight = kernel(query[None], key, value, True, scale)
    return output[0].transpose(0, 1), weight[0].transpose(0, 1)


def _whole(
    kernel: Kernel, query: Tensor, context: KeysValues, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend to all of a context. No mask, so query heads that share keys count as more queries."""
    key, value = context
    heads, tokens, size = query.shape
    grouped = query.reshape(key.shape[0], heads // key.shape[0] * tokens, size)
    output, weight = kernel(grouped[None], key[None], value[None], False, scale)
    return (
        output[0].reshape(heads, tokens, size).transpose(0, 1),
        weight[0].reshape(heads, tokens).transpose(0, 1),
    )


def _merge(output: Tensor, weight: Tensor, other: tuple[Tensor, Tensor]) -> None:
    """Merge another part into ``output`` and its log-sum-exp ``weight``, in place.

    softmax over two sets of keys is the mean of the softmaxes over each, weighted by their sums:
    exp(b) / (exp(a) + exp(b)) = sigmoid(b - a).
    """
    other_output, other_weight = other
    share = (other_weight - weight).sigmoid_().unsqueeze(-1).to(output.dtype)
    output.lerp_(other_output, share)
    weight.copy_(weight.logaddexp(other_weight))
