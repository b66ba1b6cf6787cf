"""What the rest of the actor knows of an engine. No torch here."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import msgspec

from schemas.decision import ModelInfo, Option, SemifResult, State
from schemas.errors import SemifError
from schemas.health import EngineHealth, ProofReport

__all__ = [
    "CanaryFailed",
    "DecisionResult",
    "Engine",
    "Observer",
    "Outcome",
    "Prepared",
    "ProofFailed",
    "Question",
    "Scores",
    "Work",
]


# Structs, not dataclasses: every request makes one of each, and they cost a fifth to make.


class Question(msgspec.Struct, frozen=True):
    """One decision of a request, valid by :mod:`schemas.validation`."""

    id: str
    question: str
    options: tuple[Option, ...]


class Work(msgspec.Struct, frozen=True):
    """What one request asks: questions over one state.

    ``shared`` says which of SemIf's functions is meant, ``score_shared`` or ``score``; the latter
    has exactly one question. A question that was refused before is an error in its place; ``ids``
    names them all, in the order asked.
    """

    shared: bool
    state: State
    ids: tuple[str, ...]
    questions: tuple[Question | SemifError, ...]


class Prompt(msgspec.Struct, frozen=True):
    """A tokenised prompt."""

    ids: tuple[int, ...]
    state_tokens: int
    """Leading tokens that depend on the state alone: where equal, the model's work is shared."""
    sha256: str
    """SHA-256 of the prompt's text in UTF-8, as SemIf gives it."""


class Prepared(msgspec.Struct, frozen=True):
    """Work whose prompts are known to fit; :meth:`of` makes one.

    ``questions`` is as long as in the work; a question whose prompt was refused is now its error,
    and has no prompt.
    """

    work: Work
    questions: tuple[Question | SemifError, ...]
    prompts: tuple[Prompt | None, ...]
    rows: int
    """Prompts to score."""
    tokens: int
    """Tokens to compute when nothing is known before: what all prompts share counts once."""
    state_tokens: int
    """Tokens that depend on the state alone."""
    state_key: bytes
    """SHA-256 of those tokens: requests with equal ones share the model's work."""

    @classmethod
    def of(
        cls,
        work: Work,
        questions: tuple[Question | SemifError, ...],
        prompts: tuple[Prompt | None, ...],
    ) -> Self:
        """Count, once and off the event loop, what the scheduler will ask."""
        asked = [prompt for prompt in prompts if prompt is not None]
        if not asked:
            return cls(work, questions, prompts, 0, 0, 0, b"")
        shared = min(prompt.state_tokens for prompt in asked)
        tokens = shared + sum(len(prompt.ids) - shared for prompt in asked)
        first = asked[0]
        key = hashlib.sha256(array("q", first.ids[: first.state_tokens])).digest()
        return cls(work, questions, prompts, len(asked), tokens, first.state_tokens, key)


class DecisionResult(SemifResult, frozen=True, kw_only=True):
    """One SemIf result; the two timings are there for ``score`` only."""

    forward_seconds: float = 0.0
    total_seconds: float = 0.0


class Scores(msgspec.Struct, frozen=True):
    """The outcome of one request: a result or an error for each question, in order."""

    results: tuple[DecisionResult | SemifError, ...]
    forward_ms: float
    batch_rows: int
    prefix_tokens_reused: int


Outcome = Scores | SemifError


class Engine(Protocol):
    """A resident model that has passed its proofs."""

    @property
    def scorer(self) -> str:
        """Name of the scorer in use."""

    @property
    def model(self) -> ModelInfo:
        """SemIf's metadata of the model."""

    def prepare(self, work: Work) -> Prepared:
        """Check and tokenise the prompts of ``work``.

        Safe on a worker thread beside :meth:`score`. Raises :class:`SemifError` when the one
        question of a ``score`` is refused; in a shared request the error takes its place.
        """

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """Score each request of ``batch``, in order. GPU thread only; raises nothing expected."""

    def canary(self) -> None:
        """Ask the known decision. GPU thread only. Raises :class:`CanaryFailed`."""

    def health(self) -> EngineHealth:
        """Give the model and its device. Safe on any thread, also while the model works."""


class ProofFailed(Exception):
    """A proof of the start failed: the process must not subscribe (INV-3)."""

    def __init__(self, proof: str, reason: str) -> None:
        super().__init__(f"{proof}: {reason}")
        self.proof = proof
        self.reason = reason


class CanaryFailed(Exception):
    """The known decision has another answer than at the start: the model cannot be trusted."""


Observer = Callable[[ProofReport], None]
"""Told of each proof when it starts and when it ends. Called on the GPU thread."""
