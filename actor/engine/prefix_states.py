"""What a model remembers of a prefix, immutable, and the forks of it that rows go on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from actor.engine.shared_attention import KeysValues

__all__ = ["PrefixStates", "RecurrentFork"]

Tensor = Any


@dataclass(frozen=True, slots=True)
class PrefixStates:
    """Keys and values of layers with attention; convolution and recurrent state of the others.

    Of the prefix's own tokens: what precedes them (the constant head) is kept once, apart. A
    recurrent state covers all that precedes, so it replaces the head's.
    """

    keys_values: Mapping[int, KeysValues]
    recurrent: Mapping[int, tuple[Tensor, Tensor]]
    """``[1, channels, kernel]`` and ``[1, heads, key size, value size]`` by layer."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        pairs = (*self.keys_values.values(), *self.recurrent.values())
        return sum(tensor.nbytes for pair in pairs for tensor in pair)


class RecurrentFork:
    """Stands in for transformers' cache during one forward pass of a model with linear attention.

    Each row begins with a copy of its source's state and the padded end state is thrown away,
    unless ``keep`` (then nothing may be padded). A snapshot is never changed: several families of
    transformers have dropped or kept too much of a state that was cropped or reused (transformers
    issues 45513, 49036).
    """

    def __init__(self, sources: Sequence[PrefixStates | None], *, keep: bool = False) -> None:
        self._sources = sources
        self._keep = keep
        self._conv: dict[int, Tensor] = {}
        self._recurrent: dict[int, Tensor] = {}

    def recurrent(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Give the end states by layer."""
        return {layer: (conv, self._recurrent[layer]) for layer, conv in self._conv.items()}

    def get_seq_length(self, _layer_idx: int = 0) -> int:
        """Positions are always given, so nothing is counted here."""
        return 0

    def is_recording_past(self, _layer_idx: int) -> bool:
        """Nothing is ever rolled back."""
        return False

    def update(
        self, keys: Tensor, values: Tensor, _layer_idx: int, **_options: Any
    ) -> tuple[Tensor, Tensor]:
        """Attention sees a row's own keys here; its prefix comes with the forest."""
        return keys, values

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Give every row a copy of its source's convolution state, or None at the very start."""
        conv = self._forked(layer_idx, 0, state_idx)
        if conv is not None and self._keep:
            self._conv[layer_idx] = conv  # a pass of a single token changes it in place
        return conv

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Give every row a copy of its source's recurrent state, or None at the very start."""
        return self._forked(layer_idx, 1, state_idx)

    def update_conv_state(
        self, inputs: Tensor, layer_idx: int, state_idx: int = 0, *, conv_kernel_size: int
    ) -> Tensor:
        """Give the inputs behind the source's state, so that the convolution sees what precedes."""
        before = self._forked(layer_idx, 0, state_idx)
        full = inputs if before is None else torch.cat([before, inputs], dim=-1)
        if self._keep:
            missing = max(conv_kernel_size - full.shape[-1], 0)
            self._conv[layer_idx] = pad(full, (missing, 0))[..., -conv_kernel_size:].clone()
        return full

    def update_recurrent_state(self, states: Tensor, layer_idx: int, **_options: Any) -> Tensor:
        """Take the end state of a layer."""
        if self._keep:
            self._recurrent[layer_idx] = states
        return states

    def _forked(self, layer_idx: int, which: int, state_idx: int) -> Tensor | None:
        if state_idx:
            raise NotImplementedError("a layer with several recurrent states")
        if self._sources[0] is None:
            return None
        # One layer at a time: all rows' states of all layers at once would be gigabytes.
        return torch.cat([s.recurrent[layer_idx][which] for s in self._sources if s is not None])
