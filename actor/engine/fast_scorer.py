"""The fast scorer: many rows in one forward pass, each token computed once (design 6.6)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from actor.engine.attention_kernels import kernel_for
from actor.engine.base import Prompt
from actor.engine.layout import Group, Plan, group_prompts, plans_of
from actor.engine.prefix_cache import PrefixCache
from actor.engine.prefix_states import PrefixStates, RecurrentFork
from actor.engine.shared_attention import Branch, Forest, forest_attention, install

__all__ = ["FAMILIES", "FastScorer", "Scored", "unsupported"]

FAMILIES = ("llama", "qwen3", "qwen3_5_text")
"""Model types whose forward pass is known to be what is done here; proof 8 checks each start."""
STATE_TOKENS_MIN = 32
"""A state of one row is computed and kept apart from this many tokens on."""
PADDING_SHARE_MAX = 0.25
"""Rows of a model with linear attention go together while their padding is below this share."""

Tensor = Any


@dataclass(slots=True)
class Scored:
    """Logits of the 16 letters for each row, and what they cost."""

    logits: list[list[float]]
    reused: list[int]
    """Tokens of each prompt that were not computed for it: known before, or another row's work."""
    rows_max: int = 0
    """Rows in the largest forward pass."""


@dataclass(slots=True)
class _Batch:
    """One call of the model as it is laid out."""

    ids: list[list[int]] = field(default_factory=lambda: [[]])
    positions: list[list[int]] = field(default_factory=lambda: [[]])
    segments: list[slice] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    """(row in the request's order, position of its last token)."""

    def add(self, tokens: Sequence[int], position: int) -> slice:
        """Lay a segment behind the others, in one line."""
        start = len(self.ids[0])
        self.ids[0].extend(tokens)
        self.positions[0].extend(range(position, position + len(tokens)))
        self.segments.append(slice(start, start + len(tokens)))
        return self.segments[-1]


def unsupported(model: Any) -> str | None:
    """Say why the fast scorer does not serve ``model``, or None when it does."""
    config = model.config.get_text_config()
    if config.model_type not in FAMILIES:
        return f"model type {config.model_type} is none of {', '.join(FAMILIES)}"
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "linear_attention"}:
        return f"layers of kind {', '.join(sorted(kinds))}"
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        return "its output layer has a bias"
    return None


class FastScorer:
    """Scores prompts of any states together. GPU thread only."""

    name = "fast"

    def __init__(
        self,
        model: Any,
        *,
        head: tuple[int, ...],
        letters: Sequence[int],
        batch_tokens_max: int,
        batch_rows_max: int,
        cache_bytes_max: int,
    ) -> None:
        install(model)
        weights = model.get_output_embeddings().weight
        config = model.config.get_text_config()
        size = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self.kernel_name, self._kernel = kernel_for(weights.device.type, weights.dtype, size)
        self._body = model.base_model
        self._device = weights.device
        # fp32: a step of bfloat16 near 32 is 0.25, so that ties would be common.
        self._letters = weights[torch.tensor(letters, device=self._device)].detach().float()
        self._recurrent = "linear_attention" in (getattr(config, "layer_types", None) or ())
        parameters = inspect.signature(self._body.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.head = head
        self.cache: PrefixCache[PrefixStates] = PrefixCache(bytes_max=cache_bytes_max)
        self._tokens_max = batch_tokens_max
        self._rows_max = batch_rows_max
        self.tokens_computed = 0
        self._head_states = self._prefill(head, None) if head else None

    @torch.inference_mode()
    def score(self, prompts: Sequence[Prompt]) -> Scored:
        """Give the letters' logits for each prompt, in order.

        Every prompt must begin with ``head``; the encoder sees to it.
        """
        groups = group_prompts(prompts, head=self.head, state_tokens_min=STATE_TOKENS_MIN)
        scored = Scored([[] for _ in prompts], [0] * len(prompts))
        for plan in plans_of(
            groups,
            known=self.cache.would_hit,
            tokens_max=self._tokens_max,
            rows_max=self._rows_max,
        ):
            scored.rows_max = max(scored.rows_max, sum(len(group.rows) for group in plan.groups))
            if self._recurrent:
                self._score_rows(plan, scored)
            else:
                self._score_packed(plan, scored)
        return scored

    def _score_packed(self, plan: Plan, scored: Scored) -> None:
        """Score in one forward pass: states and rows in one line, nothing padded."""
        batch = _Batch()
        fresh: list[tuple[Group, Branch]] = []
        for group in plan.groups:
            known = self._known(group, scored)
            branch = Branch(slice(0, 0), known=known.keys_values if known else None)
            if group.state and known is None:
                branch.state = batch.add(group.state, len(self.head))
                branch.keep = self.cache.bytes_max > 0
                fresh.append((group, branch))
            start = len(batch.ids[0])
            for row, tail in zip(group.rows, group.tails, strict=True):
                segment = batch.add(tail, len(self.head) + len(group.state))
                batch.ends.append((row, segment.stop - 1))
            branch.leaves = slice(start, len(batch.ids[0]))
            if group.state:
                batch.branches.append(branch)
        self._run(batch, scored)
        for group, branch in fresh:
            if branch.keep:
                self.cache.put(group.key, PrefixStates(branch.collected, {}))

    def _score_rows(self, plan: Plan, scored: Scored) -> None:
        """Score with recurrent states: each state by itself, then the rows, padded on the right."""
        rows: list[tuple[tuple[int, ...], int, int, PrefixStates | None]] = []
        for number, group in enumerate(plan.groups):
            states = self._known(group, scored)
            if group.state and states is None:
                states = self._prefill(group.state, self._head_states)
                self.cache.put(group.key, states)
            for row, tail in zip(group.rows, group.tails, strict=True):
                rows.append((tail, row, number if states else -1, states))
        offsets = [len(self.head) + len(group.state) for group in plan.groups]
        rows.sort(key=lambda each: len(each[0]))
        while rows:
            width = len(rows[0][0])
            count = 1
            while count < len(rows) and len(rows[count][0]) * (1 - PADDING_SHARE_MAX) <= width:
                count += 1
            together, rows = sorted(rows[:count], key=lambda each: each[2]), rows[count:]
            self._score_padded(together, offsets, scored)

    def _score_padded(self, rows: list[Any], offsets: list[int], scored: Scored) -> None:
        width = max(len(tail) for tail, *_ in rows)
        batch = _Batch([], [])
        for index, (tail, row, group, states) in enumerate(rows):
            offset = offsets[group] if states else len(self.head)
            batch.ids.append([*tail, *[0] * (width - len(tail))])
            batch.positions.append(list(range(offset, offset + width)))
            here = slice(index * width, (index + 1) * width)
            batch.segments.append(here)
            batch.ends.append((row, here.start + len(tail) - 1))
            if states is None:
                continue
            if index and rows[index - 1][2] == group:
                batch.branches[-1].leaves = slice(batch.branches[-1].leaves.start, here.stop)
            else:
                batch.branches.append(Branch(here, known=states.keys_values))
        sources = [states or self._head_states for *_, states in rows]
        self._run(batch, scored, RecurrentFork(sources))

    def _known(self, group: Group, scored: Scored) -> PrefixStates | None:
        """Look the state up, and count what the rows of the group need not compute."""
        known = self.cache.get(group.key) if group.state else None
        for index, row in enumerate(group.rows):
            shared = len(group.state) if known is not None or index else 0
            scored.reused[row] = len(self.head) + shared
        return known

    def _prefill(self, ids: Sequence[int], before: PrefixStates | None) -> PrefixStates:
        """Compute a prefix by itself and give what is to be remembered of it."""
        batch = _Batch()
        own = batch.add(ids, len(self.head) if before else 0)
        branch = Branch(slice(own.stop, own.stop), state=own, keep=True)
        batch.branches.append(branch)
        fork = RecurrentFork([before], keep=True)
        with torch.inference_mode():
            self._hidden(batch, before, fork)
        return PrefixStates(branch.collected, fork.recurrent())

    def _run(self, batch: _Batch, scored: Scored, fork: RecurrentFork | None = None) -> None:
        hidden = self._hidden(batch, self._head_states, fork)
        ends = torch.tensor([end for _, end in batch.ends], device=self._device)
        logits = (hidden[ends].float() @ self._letters.T).tolist()
        for (row, _), values in zip(batch.ends, logits, strict=True):
            scored.logits[row] = values

    def _hidden(
        self, batch: _Batch, head: PrefixStates | None, fork: RecurrentFork | None
    ) -> Tensor:
        """Run the model's layers and give the last hidden state of every token, in one line."""
        ids = torch.tensor(batch.ids, device=self._device)
        self.tokens_computed += ids.numel()
        # transformers takes a mask of four dimensions as it is; ours is in the forest.
        mask: Any = torch.ones((1, 1, 1, 1), device=self._device, dtype=torch.bool)
        if self._recurrent:
            mask = {"full_attention": mask, "linear_attention": None}
        forest = Forest(
            self._kernel, batch.segments, head.keys_values if head else None, batch.branches
        )
        with forest_attention(forest):
            output = self._body(
                input_ids=ids,
                position_ids=torch.tensor(batch.positions, device=self._device),
                attention_mask=mask,
                use_cache=False,
                **({self._cache_name: fork} if self._recurrent else {}),
            )
        return output.last_hidden_state.reshape(ids.numel(), -1)
