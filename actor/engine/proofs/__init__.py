"""The start of the engine: everything that must be proved before the actor subscribes (INV-3)."""

from __future__ import annotations

from typing import Any

from actor.engine.binding import Binding, bind
from actor.engine.encoding import PromptEncoder
from actor.engine.ledger import Ledger, Refuted
from actor.engine.loading import Loaded, load
from actor.engine.manifest import read_and_verify
from actor.engine.memory import GIB, DeviceMemory, find_device, set_cap
from actor.engine.prefix import install
from actor.engine.proofs.prompt import (
    prove_answer_slots,
    prove_control_text,
    prove_state_prefix,
    prove_template,
)
from actor.engine.proofs.scoring import prove_decision, prove_peak
from actor.engine.reference_scorer import ReferenceScorer
from actor.engine.torch_engine import TorchEngine
from actor.settings import Settings

__all__ = ["prove"]


def prove(settings: Settings, ledger: Ledger) -> TorchEngine:
    """Load the model and prove it; each proof stands on those before it. The bus comes later.

    Runs on the GPU thread, for half a minute or more. Raises ``ProofFailed``.
    """
    torch, memory = _prove_device(settings, ledger)
    loaded = _prove_weights(torch, memory, settings, ledger)
    binding = _prove_binding(ledger)
    with ledger.proof("template") as note:
        prove_template(binding, loaded.tokenizer, note)
    with ledger.proof("answer_slots") as note:
        prove_answer_slots(binding, loaded.tokenizer, note)
    scorer = ReferenceScorer(
        binding, loaded.model, loaded.tokenizer, loaded.info, settings.max_tokens
    )
    with ledger.proof("decision") as note:
        canary = prove_decision(scorer, note)
    with ledger.proof("state_prefix") as note:
        prove_state_prefix(scorer, note)
    with ledger.proof("control_text") as note:
        encoder = PromptEncoder(binding, loaded.tokenizer, tokens_max=settings.max_tokens)
        prove_control_text(encoder, note)
    with ledger.proof("peak") as note:
        prove_peak(
            scorer,
            encoder,
            memory,
            batch_tokens_max=settings.batch_tokens_max,
            batch_rows_max=settings.batch_rows_max,
            note=note,
        )
    return TorchEngine(
        torch=torch,
        encoder=encoder,
        reference=scorer,
        memory=memory,
        batch_tokens_max=settings.batch_tokens_max,
        batch_rows_max=settings.batch_rows_max,
        known=canary,
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
