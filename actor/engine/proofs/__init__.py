"""The start of the engine: everything that must be proved before the actor subscribes (INV-3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from actor.engine.base import DecisionResult
from actor.engine.binding import Binding, bind
from actor.engine.encoding import PromptEncoder
from actor.engine.fast_batches import FastBatches
from actor.engine.fast_scorer import FastScorer, unsupported
from actor.engine.ledger import Ledger, Refuted
from actor.engine.loading import Loaded, load
from actor.engine.manifest import read_and_verify
from actor.engine.memory import GIB, DeviceMemory, find_device, set_cap
from actor.engine.plain_encoding import PlainEncoder
from actor.engine.prefix import install
from actor.engine.proofs.fast import (
    INSTEAD,
    prove_equality,
    prove_fast_peak,
    prove_plain_text,
)
from actor.engine.proofs.prompt import (
    prove_answer_slots,
    prove_control_text,
    prove_state_prefix,
    prove_template,
)
from actor.engine.proofs.scoring import (
    EVIDENCE,
    KNOWN,
    QUESTION,
    prove_decision,
    prove_peak,
)
from actor.engine.reference_scorer import ReferenceScorer
from actor.engine.torch_engine import LOGIT_TOLERANCE, Canary, TorchEngine
from actor.settings import Settings

__all__ = ["prove"]

MIB = 1024**2
SERVING_CONFIG = "semif-actor-fast-v1"
"""In the place of SemIf's name for the way ``score_shared`` ran: it did not run."""


@dataclass(frozen=True, slots=True)
class _Start:
    """What every proof of the engine may need."""

    torch: Any
    memory: DeviceMemory
    settings: Settings
    ledger: Ledger


def prove(settings: Settings, ledger: Ledger) -> TorchEngine:
    """Load the model and prove it; each proof stands on those before it. The bus comes later.

    Runs on the GPU thread, for half a minute or more. Raises ``ProofFailed``.
    """
    torch, memory = _prove_device(settings, ledger)
    start = _Start(torch, memory, settings, ledger)
    loaded = _prove_weights(torch, memory, settings, ledger)
    binding = _prove_binding(ledger)
    with ledger.proof("template") as note:
        prove_template(binding, loaded.tokenizer, note)
    with ledger.proof("answer_slots") as note:
        letters = prove_answer_slots(binding, loaded.tokenizer, note)
    reference = ReferenceScorer(
        binding, loaded.model, loaded.tokenizer, loaded.info, settings.max_tokens
    )
    with ledger.proof("decision") as note:
        known = prove_decision(reference, note)
    with ledger.proof("state_prefix") as note:
        prove_state_prefix(reference, note)
    if settings.scorer == "fast":
        return _prove_fast(start, reference, known, letters)
    return _prove_reference(start, reference, known)


def _prove_reference(
    start: _Start, reference: ReferenceScorer, known: DecisionResult
) -> TorchEngine:
    """Prove what SemIf's own functions still need, and give the engine."""
    settings, ledger, memory = start.settings, start.ledger, start.memory
    with ledger.proof("control_text") as note:
        encoder = PromptEncoder(
            reference.binding, reference.tokenizer, tokens_max=settings.max_tokens
        )
        prove_control_text(encoder, note)
    with ledger.proof("peak") as note:
        prove_peak(
            reference,
            encoder,
            memory,
            batch_tokens_max=settings.batch_tokens_max,
            batch_rows_max=settings.batch_rows_max,
            note=note,
        )
    return TorchEngine(
        torch=start.torch,
        encoder=encoder,
        reference=reference,
        memory=memory,
        batch_tokens_max=settings.batch_tokens_max,
        batch_rows_max=settings.batch_rows_max,
        known=Canary(KNOWN, encoder.encode(EVIDENCE, QUESTION), known.option_logits),
    )


def _prove_fast(
    start: _Start, reference: ReferenceScorer, known: DecisionResult, letters: tuple[int, ...]
) -> TorchEngine:
    """Prove the fast path against SemIf's own functions, and give the engine."""
    settings, ledger, memory = start.settings, start.ledger, start.memory
    with ledger.proof("control_text") as note:
        encoder = PlainEncoder(
            reference.binding, reference.tokenizer, tokens_max=settings.max_tokens
        )
        prove_plain_text(reference, encoder, note)
    with ledger.proof("equality") as note:
        reason = unsupported(reference.model)
        if reason is not None:
            raise Refuted(f"The fast scorer does not serve this model: {reason}. {INSTEAD}")
        scorer = FastScorer(
            reference.model,
            head=encoder.head,
            letters=letters,
            batch_tokens_max=settings.batch_tokens_max,
            batch_rows_max=settings.batch_rows_max,
            cache_bytes_max=settings.prefix_cache_mib * MIB,
        )
        tolerance = LOGIT_TOLERANCE[reference.info.dtype]
        prove_equality(reference, scorer, encoder, tolerance=tolerance, note=note)
    with ledger.proof("peak") as note:
        prove_fast_peak(
            scorer,
            encoder,
            memory,
            batch_tokens_max=settings.batch_tokens_max,
            batch_rows_max=settings.batch_rows_max,
            note=note,
        )
    info = msgspec.structs.replace(reference.info, serving_config=SERVING_CONFIG)
    like = msgspec.structs.replace(known, model=info)
    [shared], _ = reference.score_shared([KNOWN])
    fast = FastBatches(
        torch=start.torch,
        memory=memory,
        scorer=scorer,
        softmax=reference.binding.softmax,
        like_score=like,
        like_shared=msgspec.structs.replace(shared, model=info),
    )
    prompt = encoder.encode(EVIDENCE, QUESTION)
    return TorchEngine(
        torch=start.torch,
        encoder=encoder,
        reference=reference,
        memory=memory,
        batch_tokens_max=settings.batch_tokens_max,
        batch_rows_max=settings.batch_rows_max,
        known=Canary(KNOWN, prompt, fast.logits(prompt)[: len(known.option_logits)]),
        fast=fast,
    )


def _prove_device(settings: Settings, ledger: Ledger) -> tuple[Any, DeviceMemory]:
    """Find the device and cap its memory, before anything lands on it."""
    with ledger.proof("device") as note:
        import torch  # noqa: PLC0415 - its seconds belong to this proof

        device = find_device(torch, settings.device)
        cap_bytes = set_cap(torch, device, settings.vram_cap_gib)
        cap = f", cap {cap_bytes / GIB:.2f} GiB" if cap_bytes else ""
        note.detail = f"{device.name}, {device.title}{cap}, PyTorch {torch.__version__}"
        note.fact("device", device.title)
        note.fact("torch", torch.__version__)
    return torch, DeviceMemory(torch, device, cap_bytes=cap_bytes)


def _prove_weights(torch: Any, memory: DeviceMemory, settings: Settings, ledger: Ledger) -> Loaded:
    """Verify the model directory by its manifest and load it."""
    with ledger.proof("weights") as note:
        if settings.model is None:
            raise Refuted("SEMIF_MODEL names no directory. Make one: `semif-actor model import`.")
        manifest, manifest_sha256 = read_and_verify(settings.model, revision=settings.revision)
        loaded = load(
            torch,
            settings.model,
            manifest,
            memory.device,
            dtype=settings.dtype,
            tokens_max=settings.max_tokens,
        )
        note.detail = f"{manifest.source} at {manifest.revision[:12]}, {settings.dtype}"
        note.fact("manifest", manifest_sha256)
        note.fact("model", loaded.info)
    return loaded


def _prove_binding(ledger: Ledger) -> Binding:
    """Bind SemIf and put the state-prefix wrapper in its place."""
    with ledger.proof("binding") as note:
        binding = bind()
        install(binding.shared)
        note.detail = f"{binding.distribution} {binding.version}"
        note.fact("semif", (binding.distribution, binding.version, binding.source_sha256))
    return binding
