"""An engine that does what a test has written down: for faults that no real model gives on cue."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence

from actor.engine.base import CanaryFailed, Outcome, Prepared, Prompt, Question, Scores, Work
from schemas.decision import ModelInfo
from schemas.health import EngineHealth

DONE = Scores(results=(), forward_ms=1.0, batch_rows=1, prefix_tokens_reused=0)


STATE_TOKENS = 8
OWN_TOKENS = 2


def prompt(state: str, *, state_tokens: int = STATE_TOKENS, own_tokens: int = OWN_TOKENS) -> Prompt:
    """Give a prompt of the two lengths together; its state's tokens are those of ``state``."""
    head = (zlib.crc32(state.encode()), *range(state_tokens - 1))
    return Prompt((*head, *range(own_tokens)), state_tokens, sha256="0")


def prepared(
    name: str,
    *,
    state: str | None = None,
    rows: int = 1,
    state_tokens: int = STATE_TOKENS,
    own_tokens: int = OWN_TOKENS,
) -> Prepared:
    """Give work that its name tells apart, over a state of its own unless one is given.

    To compute: ``state_tokens + rows * own_tokens`` tokens, or none without rows.
    """
    each = prompt(state or name, state_tokens=state_tokens, own_tokens=own_tokens)
    return Prepared.of(Work(True, name, (), ()), (), (each,) * rows)


class ScriptedEngine:
    """An engine whose outcomes a test has written down, by the state asked."""

    scorer = "scripted"

    def __init__(
        self,
        outcomes: dict[str, Outcome | type[BaseException]] | None = None,
        *,
        default: Outcome = DONE,
    ) -> None:
        self.default = default
        self.outcomes = outcomes or {}
        self.prepare_error: BaseException | None = None
        self.scored: list[str] = []
        self.batches: list[int] = []
        self.canaries = 0
        self.canary_fails = False
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.sang_thrice = threading.Event()

    @property
    def model(self) -> ModelInfo:
        raise NotImplementedError

    def prepare(self, work: Work) -> Prepared:
        if self.prepare_error is not None:
            raise self.prepare_error
        asked = (isinstance(question, Question) for question in work.questions)
        prompts = tuple(prompt(str(work.state)) if each else None for each in asked)
        return Prepared.of(work, work.questions, prompts)

    def health(self) -> EngineHealth:
        raise NotImplementedError

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        self.entered.set()
        self.gate.wait()
        self.batches.append(len(batch))
        return [self._one(str(each.work.state)) for each in batch]

    def _one(self, name: str) -> Outcome:
        self.scored.append(name)
        outcome = self.outcomes.get(name, self.default)
        if isinstance(outcome, type):
            raise outcome
        return outcome

    def canary(self) -> None:
        self.canaries += 1
        if self.canaries == 3:
            self.sang_thrice.set()
        if self.canary_fails:
            raise CanaryFailed("another song")
