"""The start of the engine: every proof in order, and none after one that failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tiny_models import copy_of, make_tiny

from actor.engine.base import ProofFailed
from actor.engine.ledger import Ledger
from actor.engine.proofs import prove
from actor.settings import Settings
from schemas.health import ProofReport

BEFORE = ("device", "weights", "binding", "template", "answer_slots", "decision", "state_prefix")
ORDER = {
    "reference": (*BEFORE, "control_text", "peak"),
    "fast": (*BEFORE, "control_text", "equality", "peak"),
}


@pytest.mark.parametrize("scorer", ORDER)
@pytest.mark.parametrize("family", ["tiny_llama", "tiny_qwen3", "tiny_qwen35", "demo_model"])
def test_every_proof_passes_on_a_good_model(
    family: str, scorer: str, proved: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    """Random models of each family and the real weights: each proof once, in order, passed."""
    _, told = proved(request.getfixturevalue(family), scorer)

    ended = [(proof.name, proof.outcome) for proof in told if proof.outcome != "running"]
    assert ended == [(name, "passed") for name in ORDER[scorer]]
    assert all(proof.detail for proof in told if proof.outcome == "passed")


def drop_template(folder: Path) -> None:
    """Take the chat template away, as in a base model."""
    (folder / "chat_template.jinja").unlink()


def rewrite_letter(folder: Path) -> None:
    """Let the tokenizer make another text of the letter A."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"String": "A"}, "content": "AA"}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def test_a_family_nobody_checked_stops_the_fast_scorer_and_not_the_reference(
    tmp_path: Path, demo_model: Path
) -> None:
    """A random Mistral: INV-3, it is said and not guessed; SemIf's own functions serve it."""
    import transformers

    config = transformers.MistralConfig(
        vocab_size=49_152,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        sliding_window=None,
    )
    model = make_tiny(tmp_path / "mistral", demo_model, config, transformers.MistralForCausalLM)
    settings = Settings(model=model, device="cpu", max_tokens=512, batch_tokens_max=512)

    with pytest.raises(ProofFailed, match=r"model type mistral.*SEMIF_SCORER=reference") as caught:
        prove(settings, Ledger(lambda _proof: None))

    assert caught.value.proof == "equality"
    reference = msgspec.structs.replace(settings, scorer="reference")
    assert prove(reference, Ledger(lambda _proof: None)).scorer == "reference"


def fill_head(value: float) -> Callable[[Path], None]:
    """Give what sets every weight of the head to ``value``."""

    def change(folder: Path) -> None:
        import safetensors.torch

        path = folder / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        tensors["lm_head.weight"].fill_(value)
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})

    return change


@pytest.mark.parametrize(
    ("change", "proof", "reason"),
    [
        (drop_template, "template", "no chat template"),
        (rewrite_letter, "answer_slots", "cannot answer with letters"),
        (fill_head(0.0), "decision", "Every letter has the logit 0.0"),
        (fill_head(float("nan")), "decision", "finite"),
    ],
    ids=["no template", "letter rewritten", "constant logits", "NaN weights"],
)
def test_a_faulty_directory_stops_at_its_proof(
    tiny_llama: Path, tmp_path: Path, change: Callable[[Path], object], proof: str, reason: str
) -> None:
    """A directory whose manifest is right is still not trusted; nothing runs after the failure."""
    told: list[ProofReport] = []
    folder = copy_of(tiny_llama, tmp_path / "model", change)

    with pytest.raises(ProofFailed, match=reason) as caught:
        prove(Settings(model=folder, device="cpu", max_tokens=512), Ledger(told.append))

    assert caught.value.proof == proof
    ended = [(each.name, each.outcome) for each in told if each.outcome != "running"]
    passed = BEFORE[: BEFORE.index(proof)]
    assert ended == [*((name, "passed") for name in passed), (proof, "failed")]
