"""Models, devices and SemIfs that are never served: exit 3 with a reason, nothing subscribed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from actors import (
    patched,
    run_actor,
    subscriptions_in,
)
from tiny_models import REVISION, copy_of

from actor.bus.embedded import EmbeddedServer


def flip_a_byte(folder: Path) -> None:
    """Flip one bit in the middle of the weights."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def with_tensors(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Give a change of a model directory that rewrites its tensors."""

    def rewrite(folder: Path) -> None:
        import safetensors.torch

        path = folder / "model.safetensors"
        tensors = safetensors.torch.load_file(path)
        change(tensors)
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})

    return rewrite


def drop_tensor(tensors: dict[str, Any]) -> None:
    """Take one tensor away."""
    del tensors["model.layers.1.mlp.up_proj.weight"]


def zero_head(tensors: dict[str, Any]) -> None:
    """Make every logit zero."""
    tensors["lm_head.weight"].zero_()


def nan_norm(tensors: dict[str, Any]) -> None:
    """Make every logit NaN."""
    tensors["model.norm.weight"].fill_(float("nan"))


def with_template(change: Callable[[str], str]) -> Callable[[Path], None]:
    """Give a change of a model directory that rewrites its chat template."""

    def rewrite(folder: Path) -> None:
        path = folder / "chat_template.jinja"
        text = path.read_text(encoding="utf-8")
        changed = change(text)
        assert changed != text
        path.write_text(changed, encoding="utf-8")

    return rewrite


def two_tokens_for_a(folder: Path) -> None:
    """Make the tokenizer read every A as two of them."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"String": "A"}, "content": "AA"}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


CONTENT = "message['content']"

BAD_MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing tensor": (with_tensors(drop_tensor), "weights"),
    "no chat template": (lambda folder: (folder / "chat_template.jinja").unlink(), "template"),
    "a template that drops the payload": (
        with_template(lambda text: text.replace(CONTENT, "'hello'")),
        "template",
    ),
    "a template that trims the payload": (
        with_template(lambda text: text.replace(CONTENT, CONTENT + "[:300]")),
        "template",
    ),
    "a template that collapses spaces": (
        with_template(lambda text: text.replace(CONTENT, CONTENT + ".split()|join(' ')")),
        "template",
    ),
    "letters that are not single tokens": (two_tokens_for_a, "answer_slots"),
    "constant logits": (with_tensors(zero_head), "decision"),
    "logits that are not finite": (with_tensors(nan_norm), "decision"),
}


async def refuses_to_start(
    server: EmbeddedServer,
    model: Path,
    folder: Path,
    proof: str,
    settings: dict[str, str] | None = None,
) -> str:
    """Check an exit with 3, a heartbeat that names the proof, and no subscription ever made."""
    async with run_actor(server, model, folder, settings=settings) as actor:
        assert await actor.exit_code() == 3, actor.log_text()
        await actor.client.flush()
        failed = await actor.until("failed")
    assert failed.proofs[-1].name == proof
    assert failed.proofs[-1].outcome == "failed"
    assert failed.reason is not None
    assert failed.reason.startswith(f"{proof}: ")
    assert "PUB semif.v1.health.test" in server.log.read_text(encoding="utf-8")
    assert subscriptions_in(server.log) == []
    return failed.reason


@pytest.mark.parametrize("name", BAD_MODELS)
async def test_a_bad_model_is_never_served(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    """Each fault of a model or its tokenizer stops the start at the proof that is about it."""
    change, proof = BAD_MODELS[name]
    model = copy_of(tiny_llama, tmp_path / "model", change)

    await refuses_to_start(traced_server, model, tmp_path, proof)


async def test_a_flipped_byte_is_noticed(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """Weights that are not those that were imported are not loaded."""
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    flip_a_byte(model)

    reason = await refuses_to_start(traced_server, model, tmp_path, "weights")

    assert "model.safetensors" in reason


async def test_another_revision_is_refused(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """The revision asked for and the manifest's must be equal."""
    other = "f" * 40

    reason = await refuses_to_start(
        traced_server, tiny_llama, tmp_path, "weights", {"SEMIF_REVISION": other}
    )

    assert other in reason
    assert REVISION in reason


async def test_a_device_that_is_not_there_is_refused(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """An actor told to use a card never falls back to the CPU."""
    await refuses_to_start(
        traced_server, tiny_llama, tmp_path, "device", {"SEMIF_DEVICE": "cuda:63"}
    )


async def test_a_renamed_hook_is_refused(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """SemIf without _state_prefix is not the SemIf that is wrapped."""
    code = "import semif_phase1.shared as s\ns._renamed = s._state_prefix\ndel s._state_prefix\n"
    settings = patched(tmp_path / "patch", code)

    await refuses_to_start(traced_server, tiny_llama, tmp_path, "binding", settings)


async def test_a_function_with_other_globals_is_refused(
    traced_server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """A score_shared that would not see the wrapper is not used."""
    code = (
        "import types, semif_phase1.shared as s\n"
        "f = s.score_shared\n"
        "s.score_shared = types.FunctionType(f.__code__, dict(vars(s)), f.__name__, f.__defaults__)"
        "\n"
    )
    settings = patched(tmp_path / "patch", code)

    await refuses_to_start(traced_server, tiny_llama, tmp_path, "binding", settings)
