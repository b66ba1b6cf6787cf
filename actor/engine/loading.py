"""Weights and tokenizer from a checked local directory: one path for CPU and CUDA.

Ours, because SemIf's loader refuses a CPU and may reach a hub. It makes the same checks
(``semif_phase1.core.load_causal_model``), and more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actor.engine.ledger import Refuted
from actor.engine.manifest import Manifest
from actor.engine.memory import Device
from schemas.decision import ModelInfo

__all__ = ["Loaded", "check_placement", "load"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in ``eval`` mode on its device, its tokenizer, and SemIf's metadata."""

    model: Any
    tokenizer: Any
    info: ModelInfo


def load(
    torch: Any, folder: Path, manifest: Manifest, device: Device, *, dtype: str, tokens_max: int
) -> Loaded:
    """Load the model of ``folder``; raises :class:`Refuted`.

    The weights are read on the host and then moved, so that a CPU run takes the same path as a
    CUDA run: transformers' ``device_map`` would need another library and has its own fallbacks.
    """
    import transformers  # noqa: PLC0415 - seconds, and only for the process that loads a model

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(folder, **local)
    if hasattr(config, "auto_map"):
        raise Refuted("The model asks for code of its own (auto_map), which is never run.")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
    loader, config = _text_model(transformers, config)
    # A multimodal configuration keeps the text model's positions in the one that it wraps.
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and tokens_max > positions:
        raise Refuted(
            f"SEMIF_MAX_TOKENS={tokens_max} is more than the {positions} positions of the model."
        )
    model, report = loader.from_pretrained(
        folder, config=config, dtype=getattr(torch, dtype), output_loading_info=True, **local
    )
    _check_complete(report)
    model.eval()
    model.requires_grad_(requires_grad=False)
    model.to(device.name)
    check_placement(torch, model, device, dtype)
    info = ModelInfo(
        source=manifest.source,
        revision=manifest.revision,
        dtype=dtype,
        torch_version=str(torch.__version__),
        transformers_version=transformers.__version__,
    )
    return Loaded(model, tokenizer, info)


def _text_model(transformers: Any, config: Any) -> tuple[Any, Any]:
    """Give the class to load with; a Qwen3.5 checkpoint is multimodal, its text part is used."""
    if config.model_type in {"qwen3_5", "qwen3_5_text"}:
        return transformers.Qwen3_5ForCausalLM, config.get_text_config()
    return transformers.AutoModelForCausalLM, config


def _check_complete(report: dict[str, Any]) -> None:
    for kind in ("missing_keys", "mismatched_keys", "error_msgs"):
        entries = sorted(map(str, report.get(kind) or ()))
        if entries:
            raise Refuted(
                f"The checkpoint is not complete: {len(entries)} {kind}, the first "
                f"{entries[0]}. Weights would be random there."
            )


def check_placement(torch: Any, model: Any, device: Device, dtype: str) -> None:
    """Refuse a model of which any parameter or buffer is elsewhere than asked (INV-3)."""
    wanted = torch.device(device.name)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device != wanted:
            raise Refuted(f"{name} is on {tensor.device}, not on {wanted}.")
    formats = {parameter.dtype for _, parameter in model.named_parameters()}
    if formats != {getattr(torch, dtype)}:
        raise Refuted(f"The weights are {sorted(map(str, formats))}, not all {dtype}.")
