"""Models proved once for all engine tests, on one CPU thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from actor.engine.binding import Binding, bind
from actor.engine.ledger import Ledger
from actor.engine.proofs import prove
from actor.settings import Settings
from schemas.health import ProofReport

Proved = tuple[Any, list[ProofReport]]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small are slower on several threads, most of all beside other work."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def bound() -> Binding:
    """Give SemIf, bound once: looking through all that is installed takes half a second."""
    return bind()


@pytest.fixture(scope="session")
def proved() -> Callable[..., Proved]:
    """Give what proves a model's directory: its engine, which no test may damage, and the report.

    Each directory is proved once for each scorer.
    """

    @cache
    def run(folder: Path, scorer: Literal["fast", "reference"] = "reference") -> Proved:
        told: list[ProofReport] = []
        settings = Settings(
            model=folder, device="cpu", max_tokens=512, batch_tokens_max=2048, scorer=scorer
        )
        return prove(settings, Ledger(told.append)), told

    return run
