"""Fixtures: a real nats-server for each test, real weights, small random models."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actor.bus.embedded import EmbeddedServer, embedded_server

pytest_plugins = ["fixtures_npm"]

ROOT = Path(__file__).parents[1]

# Before torch is imported, here and in every actor that a test starts: the tests' own model and an
# actor's work at the same time, and two thread pools that spin for the same cores take several
# times as long. One thread everywhere also keeps the sums in one order, so that results are equal
# to the last bit.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """Give a nats-server of this test's own."""
    folder = tmp_path / "nats"
    folder.mkdir()
    with embedded_server(folder) as running:
        yield running


@pytest.fixture
def traced_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """Give a nats-server that logs every protocol line it reads and writes."""
    folder = tmp_path / "nats-traced"
    folder.mkdir()
    with embedded_server(folder, trace=True) as running:
        yield running


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Give the demo model's directory, made on the first use."""
    made = ROOT / ".cache" / "demo-model"
    if not made.exists():
        subprocess.run(["make", "demo-model"], cwd=ROOT, check=True)
    return made


@pytest.fixture(scope="session")
def smollm_tokenizer(demo_model: Path) -> Any:
    """Give the demo model's tokenizer."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(demo_model, local_files_only=True)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    """Give a random Llama of two layers with the demo model's tokenizer."""
    from tiny_models import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama", demo_model)


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> Path:
    """Give a random Qwen3 of two layers with the real Qwen3 tokenizer."""
    from tiny_models import make_tiny_qwen3

    return make_tiny_qwen3(tmp_path_factory.mktemp("models") / "tiny-qwen3", qwen3_tokenizer_dir)


@pytest.fixture(scope="session")
def tiny_qwen35(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> Path:
    """Give a random Qwen3.5 (linear and full attention layers) with the Qwen3 tokenizer."""
    from tiny_models import make_tiny_qwen35

    return make_tiny_qwen35(tmp_path_factory.mktemp("models") / "tiny-qwen35", qwen3_tokenizer_dir)
