"""Proofs that run the model: one decision, and the largest batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from semif_phase1 import direct

from actor.engine.binding import Binding
from actor.engine.encoding import PromptEncoder
from actor.engine.ledger import Note, Refuted
from actor.engine.loading import load
from actor.engine.manifest import read_and_verify
from actor.engine.memory import Device, DeviceMemory
from actor.engine.prefix import install
from actor.engine.proofs.scoring import KNOWN, prove_decision, prove_peak
from actor.engine.reference_scorer import ReferenceScorer

CPU = Device("cpu", "cpu", None, 0)
TOKENS_MAX = 512


@pytest.fixture
def scorer(tiny_llama: Path, bound: Binding) -> ReferenceScorer:
    """Give a scorer whose weights a test may damage."""
    install(bound.shared)
    manifest, _ = read_and_verify(tiny_llama, revision=None)
    loaded = load(torch, tiny_llama, manifest, CPU, dtype="bfloat16", tokens_max=TOKENS_MAX)
    return ReferenceScorer(bound, loaded.model, loaded.tokenizer, loaded.info, TOKENS_MAX)


def test_the_canary_is_semifs_answer(scorer: ReferenceScorer) -> None:
    """What is remembered is what SemIf gives for the same row."""
    known = prove_decision(scorer, Note({}))

    expected = direct.score(scorer.model, scorer.tokenizer, KNOWN, {}, TOKENS_MAX)
    assert list(known.option_logits) == expected["option_logits"]


def test_constant_logits_are_refused(scorer: ReferenceScorer) -> None:
    """A head of zeros decides nothing."""
    scorer.model.lm_head.weight.zero_()

    with pytest.raises(Refuted, match="Every letter has the logit"):
        prove_decision(scorer, Note({}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(scorer: ReferenceScorer, value: float) -> None:
    """SemIf's softmax refuses them, and so does the proof."""
    scorer.model.model.norm.weight.fill_(value)

    with pytest.raises((Refuted, ValueError), match="finite"):
        prove_decision(scorer, Note({}))


@pytest.mark.parametrize(
    ("field", "values", "reason"),
    [
        ("option_logits", [float("nan"), 1.0, 2.0], "not finite"),
        ("probabilities", [0.25, 0.25, 0.25], "sum to 0.75"),
        ("probabilities", [float("nan"), 0.5, 0.5], "sum to nan"),
    ],
)
def test_what_is_no_distribution_is_refused(
    scorer: ReferenceScorer, field: str, values: list[float], reason: str
) -> None:
    """A SemIf without its own checks is not believed."""

    def careless(*arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = direct.score(*arguments)
        return result | {field: values}

    doubtful = replace(scorer, binding=replace(scorer.binding, score=careless))

    with pytest.raises(Refuted, match=reason):
        prove_decision(doubtful, Note({}))


def test_a_model_that_does_not_read_its_state_is_refused(scorer: ReferenceScorer) -> None:
    """Without attention every prompt with the same last token has the same logits."""
    for layer in scorer.model.model.layers:
        layer.self_attn.o_proj.weight.zero_()

    with pytest.raises(Refuted, match="does not read them"):
        prove_decision(scorer, Note({}))


class Counting(ReferenceScorer):
    """Remembers the batches it was given."""

    batches: list[list[dict[str, Any]]]

    def score_shared(self, rows: Any) -> Any:
        self.batches.append(list(rows))
        return super().score_shared(rows)


def peak_batches(
    scorer: ReferenceScorer, memory: DeviceMemory, tokens_max: int, rows_max: int
) -> list[list[dict[str, Any]]]:
    """Run the peak proof with these limits, and give the batches it scored."""
    counting = Counting(scorer.binding, scorer.model, scorer.tokenizer, scorer.info, TOKENS_MAX)
    batches: list[list[dict[str, Any]]] = []
    object.__setattr__(counting, "batches", batches)
    prove_peak(
        counting,
        PromptEncoder(scorer.binding, scorer.tokenizer, tokens_max=TOKENS_MAX),
        memory,
        batch_tokens_max=tokens_max,
        batch_rows_max=rows_max,
        note=Note({}),
    )
    return batches


@pytest.mark.parametrize(
    ("tokens_max", "rows_max", "rows"), [(4096, 64, 8), (4096, 3, 3), (512, 64, 1)]
)
def test_the_largest_batch_allowed_is_run(
    scorer: ReferenceScorer, tokens_max: int, rows_max: int, rows: int
) -> None:
    """As many rows as the limits let in, each within a word of the longest prompt."""
    memory = DeviceMemory(torch, CPU, cap_bytes=0)

    batches = peak_batches(scorer, memory, tokens_max, rows_max)

    [batch] = batches
    length = len(direct.encode_prompt(scorer.tokenizer, batch[0], 10**6)[0])
    assert len(batch) == rows
    assert TOKENS_MAX - 2 <= length <= TOKENS_MAX
    assert memory.resting_bytes > 0


@pytest.mark.parametrize(
    ("tokens_max", "rows_max", "rows", "longest"),
    [(4096, 16, 16, 256), (2048, 2, 2, 512), (4096, 24, 24, 170)],
)
def test_under_a_cap_the_most_activations_are_run_too(
    scorer: ReferenceScorer, tokens_max: int, rows_max: int, rows: int, longest: int
) -> None:
    """Nothing to share, all rows as long as they may be, and each ends at a place of its own."""
    memory = DeviceMemory(torch, CPU, cap_bytes=1)

    batches = peak_batches(scorer, memory, tokens_max, rows_max)

    _, batch = batches
    lengths = [len(direct.encode_prompt(scorer.tokenizer, row, 10**6)[0]) for row in batch]
    assert len(batch) == rows
    assert longest - 10 <= max(lengths) <= longest
    assert len(set(lengths)) == rows
    assert len({row["state"] for row in batch}) == 1
    assert len(batch[0]["state"]) < 10
