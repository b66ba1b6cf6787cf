"""Proofs about tokenizer and template: each passes on what is right and fails on its fault."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from semif_phase1 import shared
from tiny_models import QWEN35_TEMPLATE

from actor.engine.binding import Binding
from actor.engine.encoding import PromptEncoder
from actor.engine.ledger import Note, Refuted
from actor.engine.loading import Loaded, load
from actor.engine.manifest import read_and_verify
from actor.engine.memory import Device
from actor.engine.prefix import full_prompt_row, install, upstream_of
from actor.engine.proofs.prompt import (
    prove_answer_slots,
    prove_control_text,
    prove_state_prefix,
    prove_template,
)
from actor.engine.reference_scorer import ReferenceScorer

CONTENT = "message['content']"
PLAIN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.fixture
def binding(bound: Binding) -> Iterator[Binding]:
    """Give SemIf with the wrapper in place, and put back what a test breaks."""
    present = shared._state_prefix
    install(bound.shared)
    yield bound
    shared._state_prefix = present


@pytest.fixture(scope="module", params=["smollm2", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """Give each real tokenizer; a test puts back what it changes."""
    if request.param == "smollm2":
        return copy.deepcopy(request.getfixturevalue("smollm_tokenizer"))
    import transformers

    folder: Path = request.getfixturevalue("qwen3_tokenizer_dir")
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def note() -> Note:
    """Give an empty note."""
    return Note({})


def test_real_tokenizers_and_templates_pass(binding: Binding, tokenizer: Any) -> None:
    """SmolLM2's and Qwen3's own templates and letters are right."""
    found = note()

    prove_template(binding, tokenizer, found)
    prove_answer_slots(binding, tokenizer, found)
    prove_control_text(PromptEncoder(binding, tokenizer, tokens_max=4096), found)

    assert "control tokens, each refused" in found.detail


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, QWEN35_TEMPLATE])
def test_templates_that_keep_the_payload_pass(
    binding: Binding, tokenizer: Any, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trimming around a JSON object changes nothing: Qwen3.5's own template does it."""
    monkeypatch.setattr(tokenizer, "chat_template", template)

    prove_template(binding, tokenizer, note())


@pytest.mark.parametrize(
    "damage",
    [
        "'hello'",
        f"{CONTENT}[:-1]",
        f"{CONTENT}[1:]",
        f"{CONTENT}[:200]",
        f"{CONTENT}[:8000]",
        f"{CONTENT}|truncate(400)",
        f"{CONTENT}|lower",
        f"{CONTENT}|capitalize",
        f"{CONTENT}|striptags",
        f"{CONTENT}|urlize",
        f"{CONTENT}|upper",
        f"{CONTENT}|escape",
        f"{CONTENT}|replace('  ', ' ')",
        f"{CONTENT}|replace('{{{{', '')",
        f"{CONTENT}.split()|join(' ')",
        f"{CONTENT}|tojson",
        f"{CONTENT} + {CONTENT}",
        f"({CONTENT} if message.role == 'user' else '')",
        f"({CONTENT} if message.role == 'system' else '')",
    ],
)
def test_templates_that_change_the_payload_are_refused(
    binding: Binding, tokenizer: Any, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped, cut, repeated, re-cased, escaped or reformatted: none is served."""
    monkeypatch.setattr(tokenizer, "chat_template", PLAIN_TEMPLATE.replace(CONTENT, damage))

    with pytest.raises(Refuted, match="instead of once"):
        prove_template(binding, tokenizer, note())


def test_no_template_is_refused(
    binding: Binding, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base model has none."""
    monkeypatch.setattr(tokenizer, "chat_template", None)

    with pytest.raises(Refuted, match="no chat template"):
        prove_template(binding, tokenizer, note())


def test_a_tail_that_merges_with_the_letter_is_refused(
    binding: Binding, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that ends in a letter makes one token of it and the answer."""
    monkeypatch.setattr(tokenizer, "chat_template", PLAIN_TEMPLATE + "Answer:T")

    with pytest.raises(Refuted, match="cannot answer with letters"):
        prove_answer_slots(binding, tokenizer, note())


def test_letters_that_are_not_single_tokens_are_refused(binding: Binding, tokenizer: Any) -> None:
    """A tokenizer that rewrites a letter cannot be read by it."""
    from tokenizers import normalizers

    damaged = copy.deepcopy(tokenizer)
    damaged.backend_tokenizer.normalizer = normalizers.Replace("P", "PP")

    with pytest.raises(Refuted, match="cannot answer with letters"):
        prove_answer_slots(binding, damaged, note())


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_qwen3", "tiny_qwen35"])
def parts(request: pytest.FixtureRequest) -> Any:
    """Give a loaded small model of each family."""
    return loaded(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def one_model(tiny_llama: Path) -> Any:
    """Give a loaded small model, for what hangs on the tokenizer alone."""
    return loaded(tiny_llama)


def loaded(folder: Path) -> Loaded:
    """Load a model's directory."""
    manifest, _ = read_and_verify(folder, revision=None)
    device = Device("cpu", "cpu", None, 0)
    return load(torch, folder, manifest, device, dtype="bfloat16", tokens_max=512)


def scorer_of(binding: Binding, parts: Any, tokenizer: Any = None) -> ReferenceScorer:
    """Give a scorer of a loaded model."""
    return ReferenceScorer(binding, parts.model, tokenizer or parts.tokenizer, parts.info, 512)


def test_a_counterexample_is_found_and_scored(binding: Binding, parts: Any) -> None:
    """With real merges there is a state that SemIf refuses alone and that is scored here."""
    found = note()

    prove_state_prefix(scorer_of(binding, parts), found)

    assert "SemIf alone refuses" in found.detail


def test_without_the_wrapper_the_proof_fails(binding: Binding, parts: Any) -> None:
    """A wrapper that only passes on what SemIf gives is caught."""
    real = upstream_of(shared._state_prefix)

    def useless(tokenizer: Any, state: Any) -> list[int]:
        result: list[int] = real(tokenizer, state)
        return result

    useless.__wrapped__ = real  # type: ignore[attr-defined]
    useless.__semif_actor_wrapper__ = True  # type: ignore[attr-defined]
    shared._state_prefix = useless

    with pytest.raises(Refuted, match="covers a token"):
        prove_state_prefix(scorer_of(binding, parts), note())


def test_a_wrapper_that_is_not_installed_is_caught(binding: Binding, parts: Any) -> None:
    """The proof looks; it does not put the wrapper there itself."""
    shared._state_prefix = upstream_of(shared._state_prefix)

    with pytest.raises(Refuted, match="would not call"):
        prove_state_prefix(scorer_of(binding, parts), note())


def test_a_wrapper_that_is_bypassed_is_caught(
    binding: Binding, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed in the module, but score_shared looks its names up elsewhere."""
    names = dict(vars(shared)) | {"_state_prefix": upstream_of(shared._state_prefix)}
    real = shared.score_shared
    elsewhere = types.FunctionType(real.__code__, names, real.__name__, real.__defaults__)
    monkeypatch.setattr(shared, "score_shared", elsewhere)

    with pytest.raises(Refuted, match="would not call"):
        prove_state_prefix(scorer_of(binding, parts), note())


def test_a_wrapper_that_cuts_too_much_is_caught(binding: Binding, parts: Any) -> None:
    """Always giving a short prefix would be safe, and would lose all reuse."""
    real = upstream_of(shared._state_prefix)

    def short(tokenizer: Any, state: Any) -> list[int]:
        result: list[int] = real(tokenizer, state)[:5]
        return result

    short.__wrapped__ = real  # type: ignore[attr-defined]
    short.__semif_actor_wrapper__ = True  # type: ignore[attr-defined]
    shared._state_prefix = short

    with pytest.raises(Refuted, match="shortens the prefix"):
        prove_state_prefix(scorer_of(binding, parts), note())


def test_a_wrapper_that_gives_no_prefix_is_caught(binding: Binding, parts: Any) -> None:
    """Nothing at all is a prefix of everything, but score_shared refuses it."""
    right = shared._state_prefix

    def empty(tokenizer: Any, state: Any) -> list[int]:
        result: list[int] = right(tokenizer, state)
        return result if isinstance(state, dict) else []

    empty.__wrapped__ = upstream_of(right)  # type: ignore[attr-defined]
    empty.__semif_actor_wrapper__ = True  # type: ignore[attr-defined]
    shared._state_prefix = empty

    with pytest.raises(Refuted, match="covers a token"):
        prove_state_prefix(scorer_of(binding, parts), note())


def bytes_tokenizer() -> Any:
    """Give a tokenizer of one token for each byte."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=PLAIN_TEMPLATE, pad_token=alphabet[0]
    )


def test_a_tokenizer_that_never_merges_needs_no_counterexample(
    binding: Binding, one_model: Any
) -> None:
    """SemIf refuses no state of the family, so the wrapper is proved to be called."""
    scorer = ReferenceScorer(binding, one_model.model, bytes_tokenizer(), one_model.info, 4096)
    found = note()

    prove_state_prefix(scorer, found)

    assert "the wrapper is called" in found.detail


class OtherPrefix(ReferenceScorer):
    """SemIf with a prefix from elsewhere, one token shorter than the wrapper's."""

    def score_shared(self, rows: Any) -> Any:
        present = shared._state_prefix
        shared._state_prefix = lambda tokenizer, state: present(tokenizer, state)[:-1]
        try:
            return super().score_shared(rows)
        finally:
            shared._state_prefix = present


def test_a_prefix_that_is_not_the_wrappers_is_caught(binding: Binding, one_model: Any) -> None:
    """Without a counterexample the length of the prefix is what tells."""
    scorer = OtherPrefix(binding, one_model.model, bytes_tokenizer(), one_model.info, 4096)

    with pytest.raises(Refuted, match="used a prefix of"):
        prove_state_prefix(scorer, note())


def test_a_control_token_that_is_not_noticed_fails_the_proof(
    binding: Binding, smollm_tokenizer: Any
) -> None:
    """An encoder that forgot one of the tokenizer's added tokens is caught."""
    encoder = PromptEncoder(binding, smollm_tokenizer, tokens_max=512)
    encoder.control_tokens[999] = "nothing special"

    with pytest.raises(Refuted, match="'nothing special'"):
        prove_control_text(encoder, note())


@pytest.mark.parametrize("text", ["\n\n", "\t", "a\\b"])
def test_a_control_token_that_json_escapes_passes(
    binding: Binding, smollm_tokenizer: Any, text: str
) -> None:
    """Gemma's line breaks are added tokens: escaped, no text can become one."""
    from tokenizers import AddedToken

    tokenizer = copy.deepcopy(smollm_tokenizer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False)])
    [token_id] = tokenizer.encode(text, add_special_tokens=False)
    encoder = PromptEncoder(binding, tokenizer, tokens_max=512)

    prove_control_text(encoder, note())

    prompt = binding.encode_prompt(tokenizer, full_prompt_row(f"before {text} after"), 512)[0]
    plain = binding.encode_prompt(tokenizer, full_prompt_row("before after"), 512)[0]
    assert prompt.count(token_id) == plain.count(token_id)
