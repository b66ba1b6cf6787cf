"""Proofs of the fast path: each fault it is there for stops the start, and says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from semif_phase1 import direct

from actor.engine.base import Prompt
from actor.engine.binding import Binding
from actor.engine.fast_scorer import FastScorer, Scored
from actor.engine.ledger import Note, Refuted
from actor.engine.loading import load
from actor.engine.manifest import read_and_verify
from actor.engine.memory import GIB, Device, DeviceMemory
from actor.engine.plain_encoding import PlainEncoder
from actor.engine.prefix import install
from actor.engine.proofs.fast import prove_equality, prove_fast_peak, prove_plain_text
from actor.engine.proofs.scoring import QUESTION
from actor.engine.reference_scorer import ReferenceScorer

CPU = Device("cpu", "cpu", None, 0)
TOKENS_MAX = 512


@dataclass(frozen=True, slots=True)
class Rig:
    """What the proofs are given."""

    reference: ReferenceScorer
    encoder: PlainEncoder
    scorer: FastScorer


@pytest.fixture(params=["tiny_llama", "tiny_qwen35"])
def rig(request: pytest.FixtureRequest, bound: Binding) -> Rig:
    """Give a model, whose weights a test may damage, in float32."""
    install(bound.shared)
    folder: Path = request.getfixturevalue(request.param)
    manifest, _ = read_and_verify(folder, revision=None)
    loaded = load(torch, folder, manifest, CPU, dtype="float32", tokens_max=TOKENS_MAX)
    encoder = PlainEncoder(bound, loaded.tokenizer, tokens_max=TOKENS_MAX)
    scorer = FastScorer(
        loaded.model,
        head=encoder.head,
        letters=direct._slot_ids(loaded.tokenizer, 16),
        batch_tokens_max=2048,
        batch_rows_max=16,
        cache_bytes_max=2**26,
    )
    reference = ReferenceScorer(bound, loaded.model, loaded.tokenizer, loaded.info, TOKENS_MAX)
    return Rig(reference, encoder, scorer)


def prove(rig: Rig, *, tolerance: float = 1e-3) -> str:
    """Run the equality proof, and give what it found."""
    note = Note({})
    prove_equality(rig.reference, rig.scorer, rig.encoder, tolerance=tolerance, note=note)
    return note.detail


def test_equal_scorers_pass_with_the_difference_told(rig: Rig) -> None:
    """In float32 the two agree; the report has the tolerance, the difference and the kernel."""
    detail = prove(rig)

    assert "tolerance 0.001" in detail
    assert "attention flash-cpu" in detail


def test_no_difference_at_all_is_not_expected(rig: Rig) -> None:
    """With a tolerance of nothing it fails: the comparison is a real one."""
    with pytest.raises(Refuted, match=r"differ by .* SEMIF_SCORER=reference"):
        prove(rig, tolerance=0.0)


def test_a_head_that_is_not_the_prompts_is_noticed(rig: Rig) -> None:
    """A constant head computed from other tokens."""
    rig.scorer._head_states = rig.scorer._prefill(rig.scorer.head[::-1], None)

    with pytest.raises(Refuted, match="tolerance"):
        prove(rig)


def test_letters_of_another_place_are_noticed(rig: Rig) -> None:
    """Rows of the output layer in another order."""
    rig.scorer._letters = rig.scorer._letters.roll(1, 0)

    with pytest.raises(Refuted, match="a choice that SemIf puts"):
        prove(rig)


@pytest.mark.parametrize("value", [float("nan"), 0.01])
def test_a_fault_in_long_prompts_alone_is_noticed(
    rig: Rig, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One logit of prompts over 400 tokens: only a proof near the limit can see it."""
    real = rig.scorer.score

    def score(prompts: Sequence[Prompt]) -> Scored:
        scored = real(prompts)
        for prompt, logits in zip(prompts, scored.logits, strict=True):
            logits[0] += value if len(prompt.ids) > 400 else 0
        return scored

    monkeypatch.setattr(rig.scorer, "score", score)

    with pytest.raises(Refuted, match=r"A prompt of (4|5)\d\d tokens"):
        prove(rig)


def test_a_cache_that_gives_another_state_is_noticed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every hit is the first entry's: what a colliding key would do."""
    entries: list[Any] = []
    real_put = rig.scorer.cache.put

    def put(key: Any, entry: Any) -> None:
        entries.append(entry)
        real_put(key, entry)

    monkeypatch.setattr(rig.scorer.cache, "put", put)
    monkeypatch.setattr(rig.scorer.cache, "get", lambda _key: entries[0] if entries else None)

    with pytest.raises(Refuted, match="tolerance"):
        prove(rig)


def test_every_text_is_text(rig: Rig) -> None:
    """The report counts the control tokens, and the states compared with SemIf's tokens."""
    note = Note({})

    prove_plain_text(rig.reference, rig.encoder, note)

    assert f"{len(rig.encoder.control_tokens)} control tokens are plain text" in note.detail


def test_a_tokenizer_that_obeys_is_noticed(rig: Rig) -> None:
    """The text's tokenizer replaced by the template's own."""
    rig.encoder._plain = rig.reference.tokenizer.backend_tokenizer

    with pytest.raises(Refuted, match="became a control token"):
        prove_plain_text(rig.reference, rig.encoder, Note({}))


def test_other_tokens_than_semifs_are_noticed(rig: Rig) -> None:
    """A template part that lost a token."""
    rig.encoder._before_ids = rig.encoder._before_ids[:-1]
    rig.encoder.head = ()

    with pytest.raises(Refuted, match="not those that SemIf gives"):
        prove_plain_text(rig.reference, rig.encoder, Note({}))


@pytest.mark.parametrize(("tokens_max", "rows_max"), [(2048, 16), (512, 16), (1024, 64), (800, 2)])
def test_the_peak_uses_the_limits_up(rig: Rig, tokens_max: int, rows_max: int) -> None:
    """One pass, nearly all of its tokens, no more rows than allowed; then nothing is kept."""
    rig.scorer._tokens_max, rig.scorer._rows_max = tokens_max, rows_max
    memory = DeviceMemory(torch, CPU, cap_bytes=2**60)
    before = rig.scorer.tokens_computed

    prove_fast_peak(
        rig.scorer,
        rig.encoder,
        memory,
        batch_tokens_max=tokens_max,
        batch_rows_max=rows_max,
        note=Note({}),
    )

    computed = rig.scorer.tokens_computed - before
    assert 0.7 * tokens_max <= computed <= tokens_max * 1.3  # a hybrid's rows are padded
    assert (len(rig.scorer.cache), memory.kept_bytes()) == (0, 0)
    assert memory.resting_bytes > 0


def test_without_a_cap_nothing_is_run(rig: Rig) -> None:
    """A CPU has none: the footprint is taken as it is, and the cache is empty."""
    memory = DeviceMemory(torch, CPU, cap_bytes=0)
    rig.scorer.score([rig.encoder.encode("word " * 60, QUESTION)])
    before = rig.scorer.tokens_computed

    prove_fast_peak(
        rig.scorer, rig.encoder, memory, batch_tokens_max=2048, batch_rows_max=16, note=Note({})
    )

    assert rig.scorer.tokens_computed == before
    assert (len(rig.scorer.cache), memory.kept_bytes()) == (0, 0)
    assert memory.resting_bytes > 0


def test_a_cache_that_does_not_fit_beside_the_peak_is_refused(rig: Rig) -> None:
    """Under the cap there must be room for both."""
    memory = DeviceMemory(torch, CPU, cap_bytes=GIB)
    rig.scorer.cache.bytes_max = GIB

    with pytest.raises(Refuted, match="SEMIF_PREFIX_CACHE_MIB"):
        prove_fast_peak(
            rig.scorer,
            rig.encoder,
            memory,
            batch_tokens_max=600,
            batch_rows_max=2,
            note=Note({}),
        )
