"""The fast scorer against SemIf's own functions, in float32, where nothing hides in rounding."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from semif_phase1 import direct, shared

from actor.engine.base import Prompt, Question
from actor.engine.binding import Binding
from actor.engine.encoding import row_of
from actor.engine.fast_scorer import FastScorer, unsupported
from actor.engine.loading import load
from actor.engine.manifest import read_and_verify
from actor.engine.memory import Device
from actor.engine.plain_encoding import PlainEncoder
from schemas.decision import Option

CPU = Device("cpu", "cpu", None, 0)
ATOL = 1e-3
FAMILIES = ("tiny_llama", "tiny_qwen3", "tiny_qwen35")
WORDS = ("parcel", "late", "refund", "\u00fcber", "Why?", ")", '"', "\U0001f600", "order", "again")


@dataclass(frozen=True, slots=True)
class Rig:
    """A model in float32 with SemIf and the fast scorer on it."""

    model: Any
    tokenizer: Any
    encoder: PlainEncoder

    def scorer(self, **changes: int) -> FastScorer:
        """Give a scorer with nothing in its cache."""
        limits = {"batch_tokens_max": 4096, "batch_rows_max": 64, "cache_bytes_max": 2**28}
        return FastScorer(
            self.model,
            head=self.encoder.head,
            letters=direct._slot_ids(self.tokenizer, 16),
            **(limits | changes),
        )

    def prompt(self, state: Any, question: Question) -> Prompt:
        """Tokenise one decision."""
        return self.encoder.encode(state, question)

    def semif(self, state: Any, question: Question) -> list[float]:
        """Score one decision by SemIf alone."""
        result = direct.score(self.model, self.tokenizer, row_of(state, question), {}, 4096)
        logits: list[float] = result["option_logits"]
        return logits


@pytest.fixture(scope="module")
def rig_of(bound: Binding) -> Callable[[Path], Rig]:
    """Give what loads a model's directory in float32, once; no test may damage what it gives."""

    @cache
    def make(folder: Path) -> Rig:
        manifest, _ = read_and_verify(folder, revision=None)
        loaded = load(torch, folder, manifest, CPU, dtype="float32", tokens_max=4096)
        encoder = PlainEncoder(bound, loaded.tokenizer, tokens_max=4096)
        return Rig(loaded.model, loaded.tokenizer, encoder)

    return make


@pytest.fixture(params=FAMILIES)
def rig(request: pytest.FixtureRequest, rig_of: Callable[[Path], Rig]) -> Rig:
    """Give a rig of each family."""
    return rig_of(request.getfixturevalue(request.param))


@pytest.fixture
def llama(tiny_llama: Path, rig_of: Callable[[Path], Rig]) -> Rig:
    """Give a rig of one family, for what is the same in all."""
    return rig_of(tiny_llama)


def question(text: str, options: int = 2, name: str = "q") -> Question:
    """Give a question with so many options."""
    made = tuple(Option(id=f"{n}", description=f"option {n} of it") for n in range(options))
    return Question(name, text, made)


def mixed(count: int) -> list[tuple[Any, Question]]:
    """Give decisions of mixed lengths; every third is about a state that was asked before."""
    dice = random.Random(11)  # noqa: S311 - the same mix each run

    def words(most: int) -> str:
        return " ".join(dice.choices(WORDS, k=dice.randint(1, most)))

    asked: list[tuple[Any, Question]] = []
    for number in range(count):
        state: Any = {"text": words(90), "n": number} if number % 2 else words(25)
        if number % 3 == 2:
            state = asked[number // 2][0]
        asked.append((state, question(words(12) + "?", 2 + number % 15)))
    return asked


def largest_difference(found: list[list[float]], expected: list[list[float]]) -> float:
    """Give the largest difference of two lists of logits."""
    pairs = zip(found, expected, strict=True)
    return max(abs(a - b) for left, right in pairs for a, b in zip(left, right, strict=False))


def test_a_mixed_batch_is_semifs_score_row_by_row(rig: Rig) -> None:
    """32 rows of mixed lengths, shared and single states: at first, and again from the cache."""
    asked = mixed(32)
    expected = [rig.semif(*each) for each in asked]
    prompts = [rig.prompt(*each) for each in asked]
    scorer = rig.scorer()

    for _ in range(2):
        assert largest_difference(scorer.score(prompts).logits, expected) < ATOL
    assert scorer.cache.counts.hits > 0


def test_alone_and_among_others_is_the_same(rig: Rig) -> None:
    """No row influences another, whatever its length and place."""
    prompts = [rig.prompt(*each) for each in mixed(32)]
    scorer = rig.scorer(cache_bytes_max=0)

    together = scorer.score(prompts).logits
    backwards = scorer.score(prompts[::-1]).logits[::-1]
    alone = [scorer.score([prompt]).logits[0] for prompt in prompts]

    assert largest_difference(together, alone) < ATOL
    assert largest_difference(together, backwards) < ATOL


def test_rows_over_one_state_are_semifs_score_shared(rig: Rig) -> None:
    """Questions of 1 to 40 words over a state of 150, longest first and last."""
    state = {"text": "word " * 150}
    asked = [question("so " * length + "?", 3, str(length)) for length in (40, 1, 7, 2, 39)]
    results, _ = shared.score_shared(
        rig.model, rig.tokenizer, [row_of(state, each) for each in asked], {}, 4096
    )
    expected = [result["option_logits"] for result in results]
    scorer = rig.scorer()

    scored = scorer.score([rig.prompt(state, each) for each in asked])

    assert largest_difference(scored.logits, expected) < ATOL
    assert scored.rows_max == 5


def test_the_real_model_agrees_too(demo_model: Path, rig_of: Callable[[Path], Rig]) -> None:
    """SmolLM2 with 30 layers, in float32."""
    rig = rig_of(demo_model)
    asked = mixed(9)

    scored = rig.scorer().score([rig.prompt(*each) for each in asked])

    assert largest_difference(scored.logits, [rig.semif(*each) for each in asked]) < ATOL


def test_each_token_is_computed_once(llama: Rig) -> None:
    """By hand: the head never, a state once, each tail once; on a hit the tails alone."""
    state = "word " * 60
    prompts = [llama.prompt(state, question(f"Is it {n}?")) for n in range(4)]
    head = len(llama.encoder.head)
    own = prompts[0].state_tokens - head
    tails = [len(prompt.ids) - prompt.state_tokens for prompt in prompts]
    scorer = llama.scorer()
    before = scorer.tokens_computed

    first = scorer.score(prompts)
    once = scorer.tokens_computed
    second = scorer.score(prompts)

    assert once - before == own + sum(tails)
    assert scorer.tokens_computed - once == sum(tails)
    assert first.reused == [head, *[head + own] * 3]
    assert second.reused == [head + own] * 4


@pytest.mark.parametrize(("rows_max", "tokens_max"), [(1, 4096), (3, 4096), (64, 250), (64, 1)])
def test_limits_cut_a_batch_and_change_no_answer(rig: Rig, rows_max: int, tokens_max: int) -> None:
    """Cut anywhere, also within the rows of one state, and with rows over the limit alone."""
    asked = mixed(12)
    prompts = [rig.prompt(*each) for each in asked]

    small = rig.scorer(batch_rows_max=rows_max, batch_tokens_max=tokens_max)
    scored = small.score(prompts)

    assert largest_difference(scored.logits, rig.scorer().score(prompts).logits) < ATOL
    assert scored.rows_max <= rows_max


def test_states_that_compare_equal_are_not_served_from_each_others_entry(rig: Rig) -> None:
    """1, true and 1.0; 0.0 and -0.0; other orders of keys: each has its own answer."""
    pad = "word " * 40
    states: list[Any] = [{"p": pad, "v": value} for value in (1, True, 1.0, 0.0, -0.0)]
    states += [{"p": pad, "a": 1, "b": 2}, {"b": 2, "a": 1, "p": pad}]
    asked = question("Is it so?")
    scorer = rig.scorer()

    for state in (*states, *states):
        found = scorer.score([rig.prompt(state, asked)]).logits
        assert largest_difference(found, [rig.semif(state, asked)]) < ATOL
    assert scorer.cache.counts.misses == len(states)
    assert scorer.cache.counts.hits == len(states)


def test_a_state_is_evicted_while_a_batch_uses_it(rig: Rig) -> None:
    """Room for one state, a batch over three, twice: every answer is right."""
    asked = [
        ({"n": n, "text": f"word {n} " * 40}, question(f"Is it {m}?"))
        for m in range(2)
        for n in range(3)
    ]
    prompts = [rig.prompt(*each) for each in asked]
    probe = rig.scorer()
    probe.score(prompts[:1])
    scorer = rig.scorer(cache_bytes_max=probe.cache.bytes + probe.cache.bytes // 2)

    for _ in range(2):
        found = scorer.score(prompts).logits
        assert largest_difference(found, [rig.semif(*each) for each in asked]) < ATOL
    assert scorer.cache.counts.evictions > 0


def test_one_token_states_and_tails_of_recurrent_layers(rig: Rig) -> None:
    """A prefill of one token goes another way through a linear layer; its snapshot is right."""
    prompt = rig.prompt("x", question("?"))
    split = Prompt(prompt.ids, len(rig.encoder.head) + 1, prompt.sha256)
    scorer = rig.scorer()

    together = scorer.score([split, split]).logits

    assert largest_difference(together, [rig.semif("x", question("?"))] * 2) < ATOL


def test_semifs_own_functions_are_the_same_before_and_after(tiny_llama: Path) -> None:
    """Bit for bit: the model attends as before outside the fast scorer."""
    import transformers

    from actor.engine.shared_attention import install

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_llama, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_llama, local_files_only=True, dtype=torch.bfloat16
    ).eval()
    row = row_of("word " * 50, question("Is it so?", 5))
    rows = [row | {"id": f"{n}", "question": "so " * (n + 1)} for n in range(3)]

    def answers() -> list[list[float]]:
        results, _ = shared.score_shared(model, tokenizer, rows, {}, 4096)
        alone = direct.score(model, tokenizer, row, {}, 4096)
        return [alone["option_logits"], *(result["option_logits"] for result in results)]

    before = answers()
    install(model)

    assert answers() == before


def test_other_families_are_named_not_guessed(llama: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type nobody checked, a sliding window, a bias in the head: each has its reason."""
    assert unsupported(llama.model) is None
    for change, reason in (
        ({"model_type": "gemma3_text"}, "gemma3_text"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
    ):
        config = type("Config", (), {"model_type": "llama", "layer_types": None} | change)()
        config.get_text_config = lambda config=config: config
        model = type("Model", (), {"config": config})()
        assert reason in str(unsupported(model))
    monkeypatch.setattr(llama.model.lm_head, "bias", torch.nn.Parameter(torch.zeros(4)))
    assert "bias" in str(unsupported(llama.model))
