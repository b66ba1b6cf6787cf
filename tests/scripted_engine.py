"""An engine that does what a test has written down: for faults that no real model gives on cue."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from actor.engine.base import CanaryFailed, Outcome, Prepared, Scores, Work
from schemas.decision import ModelInfo
from schemas.health import EngineHealth

DONE = Scores(results=(), forward_ms=1.0, batch_rows=1, prefix_tokens_reused=0)


def prepared(name: str) -> Prepared:
    """Give work that only its name tells apart."""
    return Prepared(Work(True, name, (), ()), (), ())


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
        return Prepared(work, work.questions, (1,) * len(work.questions))

    def health(self) -> EngineHealth:
        raise NotImplementedError

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        self.entered.set()
        self.gate.wait()
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
