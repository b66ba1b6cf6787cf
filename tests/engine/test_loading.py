"""Loading: complete, in the format and at the place asked for, or refused; and never from a hub."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import REVISION, copy_of

from actor.engine.ledger import Refuted
from actor.engine.loading import Loaded, check_placement, load
from actor.engine.manifest import read_and_verify
from actor.engine.memory import Device

CPU = Device("cpu", "cpu", None, 0)


def loaded_from(folder: Path, *, dtype: str = "bfloat16", tokens_max: int = 512) -> Loaded:
    """Load a sealed directory onto the CPU."""
    manifest, _ = read_and_verify(folder, revision=None)
    return load(torch, folder, manifest, CPU, dtype=dtype, tokens_max=tokens_max)


@pytest.mark.parametrize(
    ("family", "model_class"),
    [
        ("tiny_llama", "LlamaForCausalLM"),
        ("tiny_qwen3", "Qwen3ForCausalLM"),
        ("tiny_qwen35", "Qwen3_5ForCausalLM"),
    ],
)
def test_each_family_loads_as_its_text_model(
    family: str, model_class: str, request: pytest.FixtureRequest
) -> None:
    """In eval mode, without gradients, all weights in bfloat16 on the device."""
    loaded = loaded_from(request.getfixturevalue(family))

    assert type(loaded.model).__name__ == model_class
    assert not loaded.model.training
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in loaded.model.parameters())


def test_a_multimodal_qwen35_is_loaded_as_text(tiny_qwen35: Path, tmp_path: Path) -> None:
    """Qwen3.5's published configuration wraps the text model's; the wrapped one is used."""
    import transformers

    def wrap(folder: Path) -> None:
        inner = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        outer = transformers.Qwen3_5Config(text_config=inner)
        outer.save_pretrained(folder)

    folder = copy_of(tiny_qwen35, tmp_path / "wrapped", wrap)

    loaded = loaded_from(folder)

    assert type(loaded.model).__name__ == "Qwen3_5ForCausalLM"
    assert loaded.model.config.model_type == "qwen3_5_text"


def test_metadata_has_semifs_names(tiny_llama: Path) -> None:
    """The fields that SemIf's own loader gives, with its values (core.load_causal_model)."""
    import msgspec
    import transformers

    assert msgspec.to_builtins(loaded_from(tiny_llama).info) == {
        "source": "tiny",
        "revision": REVISION,
        "dtype": "bfloat16",
        "torch_version": torch.__version__,
        "transformers_version": transformers.__version__,
    }


def drop(tensors: dict[str, Any]) -> None:
    """Take a tensor away."""
    del tensors["model.layers.0.self_attn.q_proj.weight"]


def reshape(tensors: dict[str, Any]) -> None:
    """Give a tensor another shape."""
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 3, dtype=torch.bfloat16)


@pytest.mark.parametrize("change", [drop, reshape])
def test_an_incomplete_checkpoint_is_refused(
    tiny_llama: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    """Missing or mismatched weights would be random; transformers would only warn."""
    import safetensors.torch

    def rewrite(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        change(tensors)
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})

    folder = copy_of(tiny_llama, tmp_path / "model", rewrite)

    with pytest.raises((Refuted, RuntimeError), match=r"not complete|size mismatch|mismatched"):
        loaded_from(folder)


def test_code_in_the_model_is_never_run(tiny_llama: Path, tmp_path: Path) -> None:
    """A configuration that asks for its own Python is refused, and its file is not imported."""

    def add_code(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["auto_map"] = {"AutoModelForCausalLM": "modeling_evil.Evil"}
        path.write_text(json.dumps(config), encoding="utf-8")
        (folder / "modeling_evil.py").write_text("raise SystemExit('ran')", encoding="utf-8")

    folder = copy_of(tiny_llama, tmp_path / "model", add_code)

    with pytest.raises(Refuted, match="auto_map"):
        loaded_from(folder)


def test_code_of_the_tokenizer_is_never_run(tiny_llama: Path, tmp_path: Path) -> None:
    """A tokenizer that names Python of its own is loaded without it, or refused."""

    def add_code(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["auto_map"] = {"AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"]}
        path.write_text(json.dumps(config), encoding="utf-8")
        (folder / "tokenization_evil.py").write_text("raise SystemExit('ran')", encoding="utf-8")

    folder = copy_of(tiny_llama, tmp_path / "model", add_code)

    assert "Evil" not in type(loaded_from(folder).tokenizer).__name__


def test_more_tokens_than_positions_are_refused(tiny_llama: Path) -> None:
    """Beyond its positions a model answers nonsense."""
    assert loaded_from(tiny_llama, tokens_max=8192).model is not None

    with pytest.raises(Refuted, match="8193 is more than the 8192"):
        loaded_from(tiny_llama, tokens_max=8193)


def test_positions_are_those_of_the_text_model(tiny_llama: Path, tmp_path: Path) -> None:
    """A multimodal configuration has no positions of its own; its text part's are the limit."""
    import transformers

    def wrap(folder: Path) -> None:
        text = transformers.Gemma3TextConfig(max_position_embeddings=256, num_hidden_layers=1)
        transformers.Gemma3Config(text_config=text).save_pretrained(folder)

    folder = copy_of(tiny_llama, tmp_path / "wrapped", wrap)

    with pytest.raises(Refuted, match="257 is more than the 256"):
        loaded_from(folder, tokens_max=257)


def test_a_tensor_elsewhere_is_refused(tiny_llama: Path) -> None:
    """One parameter, or one buffer, that is not on the device stops the start."""
    model = loaded_from(tiny_llama).model
    check_placement(torch, model, CPU, "bfloat16")

    norm = model.model.norm
    norm.weight = torch.nn.Parameter(norm.weight.to("meta"), requires_grad=False)
    with pytest.raises(Refuted, match=r"model\.norm\.weight is on meta"):
        check_placement(torch, model, CPU, "bfloat16")

    other = loaded_from(tiny_llama).model
    other.register_buffer("stray", torch.ones(1, device="meta"))
    with pytest.raises(Refuted, match="stray is on meta"):
        check_placement(torch, other, CPU, "bfloat16")


def test_another_format_is_refused(tiny_llama: Path) -> None:
    """Weights in two formats, or in another one than asked, are not what was asked."""
    model = loaded_from(tiny_llama, dtype="float32").model

    with pytest.raises(Refuted, match="not all bfloat16"):
        check_placement(torch, model, CPU, "bfloat16")

    model.model.norm.to(torch.bfloat16)
    with pytest.raises(Refuted, match=r"bfloat16.*float32.*not all float32"):
        check_placement(torch, model, CPU, "float32")


def test_loading_opens_no_socket(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the environment would let transformers go online."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # read at import
    tried: list[Any] = []

    def refuse(*arguments: Any) -> None:
        tried.append(arguments)  # transformers could swallow the error and go on
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    assert loaded_from(tiny_llama).model is not None
    assert tried == []
