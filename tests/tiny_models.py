"""Random models of a few thousand weights behind real tokenizers: real paths, no quality."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actor.engine.manifest import Manifest, describe, write

REVISION = "0123456789abcdef0123456789abcdef01234567"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

QWEN35_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- set content = message.content|trim %}"
    "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
)
"""What Qwen3.5's own template does to a system and a user turn without thinking: it trims both."""


def seal(folder: Path, *, source: str = "tiny") -> Path:
    """Write a manifest over whatever ``folder`` holds now."""
    (folder / "manifest.json").unlink(missing_ok=True)
    manifest = Manifest(
        source=source,
        revision=REVISION,
        licence="none",
        made_from="a test",
        files=describe(folder),
    )
    write(folder, manifest)
    return folder


def copy_of(model: Path, target: Path, change: Callable[[Path], object]) -> Path:
    """Give a copy of a model directory with ``change`` made, and sealed again."""
    shutil.copytree(model, target)
    change(target)
    return seal(target)


def make_tiny_llama(target: Path, tokenizer: Path) -> Path:
    """Give two Llama layers over the SmolLM2 tokenizer."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=49_152,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    return make_tiny(target, tokenizer, config, transformers.LlamaForCausalLM)


def make_tiny_qwen3(target: Path, tokenizer: Path) -> Path:
    """Give two Qwen3 layers over the real Qwen3 tokenizer."""
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=151_936,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=8192,
    )
    return make_tiny(target, tokenizer, config, transformers.Qwen3ForCausalLM)


def make_tiny_qwen35(target: Path, tokenizer: Path) -> Path:
    """Give four Qwen3.5 layers, three of them linear attention, over the Qwen3 tokenizer."""
    import transformers

    config = transformers.Qwen3_5TextConfig(
        vocab_size=151_936,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        max_position_embeddings=8192,
    )
    made = make_tiny(target, tokenizer, config, transformers.Qwen3_5ForCausalLM)
    (made / "chat_template.jinja").write_text(QWEN35_TEMPLATE, encoding="utf-8")
    return seal(made)


def make_tiny(target: Path, tokenizer: Path, config: Any, model_class: Any) -> Path:
    """Give random weights of a configuration over a tokenizer."""
    import torch

    torch.manual_seed(7)
    model = model_class(config).to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                # The usual 0.02 gives logits that bfloat16 cannot tell apart.
                parameter.normal_(std=0.3)
    model.to(torch.bfloat16).save_pretrained(target)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copyfile(tokenizer / name, target / name)
    return seal(target)
