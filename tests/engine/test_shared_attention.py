"""Attention over a forest, against one dense mask in double precision."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actor.engine.attention_kernels import kernel_for, plain_kernel
from actor.engine.shared_attention import Branch, Forest, _attention, forest_attention

HEADS, KEY_HEADS, SIZE, SCALE = 6, 2, 8, 0.3
LAYER = SimpleNamespace(layer_idx=1, scaling=SCALE)


def tensors(tokens: int, heads: int) -> Any:
    """Give random numbers."""
    return torch.randn(heads, tokens, SIZE)


def dense(query: Any, key: Any, value: Any, seen: list[list[int]]) -> Any:
    """Attend from each token to the keys it sees, by the formula."""
    output = torch.zeros(query.shape[1], HEADS, SIZE, dtype=torch.float64)
    for token, keys in enumerate(seen):
        for head in range(HEADS):
            of = head * KEY_HEADS // HEADS
            scores = key[of, keys].double() @ query[head, token].double() * SCALE
            output[token, head] = scores.softmax(0) @ value[of, keys].double()
    return output


@pytest.mark.parametrize("kernel", [plain_kernel, kernel_for("cpu", torch.float32, SIZE)[1]])
def test_every_token_sees_head_state_and_its_own_segment(kernel: Any) -> None:
    """A state computed here with two rows, one known before with one row, and a row alone."""
    torch.manual_seed(5)
    head, known, tokens = 4, 3, 5 + 2 + 3 + 2 + 4
    key, value = (
        tensors(head + known + tokens, KEY_HEADS),
        tensors(head + known + tokens, KEY_HEADS),
    )
    query = tensors(tokens, HEADS)
    here = head + known
    parts = [slice(0, 5), slice(5, 7), slice(7, 10), slice(10, 12), slice(12, 16)]
    fresh = Branch(slice(5, 10), state=slice(0, 5), keep=True)
    before = {1: (key[:, head:here], value[:, head:here])}
    forest = Forest(
        kernel,
        parts,
        {1: (key[:, :head], value[:, :head])},
        [fresh, Branch(parts[3], known=before)],
    )
    contexts = [[], range(here, here + 5), range(here, here + 5), range(head, here), []]
    seen = [
        [*range(head), *context, *range(here + part.start, here + token + 1)]
        for part, context in zip(parts, contexts, strict=True)
        for token in range(part.start, part.stop)
    ]

    with forest_attention(forest):
        output, _ = _attention(LAYER, query[None], key[None, :, here:], value[None, :, here:], None)

    assert torch.allclose(output[0].double(), dense(query, key, value, seen), atol=1e-5)
    kept_key, kept_value = fresh.collected[1]
    assert torch.equal(kept_key, key[:, here : here + 5])
    assert torch.equal(kept_value, value[:, here : here + 5])
    assert kept_key.untyped_storage().nbytes() == kept_key.nbytes


def test_padding_on_the_right_changes_no_row() -> None:
    """Rows in a rectangle are segments like any other; what is behind an end is not seen."""
    torch.manual_seed(6)
    query, key, value = tensors(8, HEADS), tensors(8, KEY_HEADS), tensors(8, KEY_HEADS)

    def attend(keys: Any) -> Any:
        forest = Forest(plain_kernel, [slice(0, 4), slice(4, 8)], None, [])
        q, k, v = (t.view(t.shape[0], 2, 4, SIZE).transpose(0, 1) for t in (query, keys, value))
        with forest_attention(forest):
            return _attention(LAYER, q, k, v, None)[0]

    other = key.clone()
    other[:, 3] = 99.0

    assert torch.equal(attend(key)[0, :3], attend(other)[0, :3])
    assert torch.equal(attend(key)[1], attend(other)[1])


def test_outside_a_forest_it_is_transformers_own() -> None:
    """SemIf's scorers on the same model get what they got before."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    torch.manual_seed(7)
    layer = SimpleNamespace(num_key_value_groups=HEADS // KEY_HEADS, is_causal=True, scaling=SCALE)
    query, key, value = tensors(5, HEADS), tensors(5, KEY_HEADS), tensors(5, KEY_HEADS)
    given = (layer, query[None], key[None], value[None], None)

    assert torch.equal(
        _attention(*given, scaling=SCALE)[0], sdpa_attention_forward(*given, scaling=SCALE)[0]
    )
