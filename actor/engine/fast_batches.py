"""Requests of any callers scored together, and what happens when that fails (design 6.5, 6.6)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from actor.engine.base import DecisionResult, Outcome, Prepared, Prompt, Question, Scores
from actor.engine.fast_scorer import FastScorer
from actor.engine.fast_scorer import Scored as Logits
from actor.engine.guard import guarded
from actor.engine.memory import DeviceMemory
from schemas.errors import OutOfMemory, ScoringFailed, SemifError

__all__ = ["FastBatches"]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Row:
    """One prompt of the batch, and the request it belongs to."""

    request: int
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class _Answer:
    """Logits of one row's letters, and the tokens that were not computed for it."""

    logits: tuple[float, ...]
    reused: int
    rows: int


@dataclass(frozen=True, slots=True)
class FastBatches:
    """The fast scorer behind the guard. GPU thread only."""

    torch: Any
    memory: DeviceMemory
    scorer: FastScorer
    softmax: Callable[[list[float]], list[float]]
    """SemIf's own."""
    like_score: DecisionResult
    like_shared: DecisionResult
    """A result of each of SemIf's scorers: where the fields come from that are always the same."""

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """Score every prompt of the batch in as few forward passes as the limits allow."""
        started = time.perf_counter()
        rows = [
            _Row(number, prompt)
            for number, prepared in enumerate(batch)
            for prompt in prepared.prompts
            if prompt is not None
        ]
        answers = iter(self._attempt(rows, halvings=1) if rows else [])
        seconds = time.perf_counter() - started
        return [self._outcome(prepared, answers, seconds) for prepared in batch]

    def logits(self, prompt: Prompt) -> tuple[float, ...]:
        """Give the 16 letters' logits of one prompt; raises :class:`SemifError`."""
        [answer] = self._attempt([_Row(0, prompt)], halvings=0)
        if isinstance(answer, SemifError):
            raise answer
        return answer.logits

    def _attempt(self, rows: Sequence[_Row], *, halvings: int) -> list[_Answer | SemifError]:
        """Score rows together; one row's failure is not its neighbours'.

        Out of memory: let the prefix cache go and try again; then each half by itself,
        ``halvings`` times; then it is those rows' error. Any other failure is looked for by
        halving until it is alone: the rows beside it are answered.
        """
        failure = self._try(rows)
        if isinstance(failure, OutOfMemory) and self.scorer.cache.clear():
            _log.warning("out of memory: the prefix cache was let go")
            failure = self._try(rows)
        if not isinstance(failure, SemifError):
            return failure
        if len(rows) == 1 or (isinstance(failure, OutOfMemory) and halvings == 0):
            return [failure] * len(rows)
        left = halvings - 1 if isinstance(failure, OutOfMemory) else halvings
        half = len(rows) // 2
        first = self._attempt(rows[:half], halvings=left)
        return first + self._attempt(rows[half:], halvings=left)

    def _try(self, rows: Sequence[_Row]) -> list[_Answer | SemifError] | SemifError:
        """Give an answer for each row, or the failure of all, which holds no tensor."""
        try:
            logits = guarded(
                self.torch, self.memory, lambda: self.scorer.score([row.prompt for row in rows])
            )
        except SemifError as error:
            return error.with_traceback(None)
        return _answers(logits)

    def _outcome(self, prepared: Prepared, answers: Any, seconds: float) -> Outcome:
        """Give the outcome of one request; takes as many answers as it has prompts."""
        results: list[DecisionResult | SemifError] = []
        rows = reused = 0
        for question, prompt in zip(prepared.questions, prepared.prompts, strict=True):
            if isinstance(question, SemifError):
                results.append(question)
                continue
            assert prompt is not None  # noqa: S101 - only a refused question has none
            answer: _Answer | SemifError = next(answers)
            if isinstance(answer, SemifError):
                results.append(answer)
                continue
            results.append(self._result(prepared, question, prompt, answer.logits, seconds))
            rows, reused = max(rows, answer.rows), reused + answer.reused
        if not prepared.work.shared and isinstance(results[0], SemifError):
            return results[0]
        return Scores(tuple(results), seconds * 1000, rows, reused)

    def _result(
        self,
        prepared: Prepared,
        question: Question,
        prompt: Prompt,
        logits: tuple[float, ...],
        seconds: float,
    ) -> DecisionResult:
        like = self.like_shared if prepared.work.shared else self.like_score
        chosen = list(logits[: len(question.options)])
        return DecisionResult(
            id=question.id,
            option_ids=tuple(option.id for option in question.options),
            probabilities=tuple(self.softmax(chosen)),
            option_logits=tuple(chosen),
            input_tokens=len(prompt.ids),
            prompt_sha256=prompt.sha256,
            prompt_version=like.prompt_version,
            model=like.model,
            readout=like.readout,
            probability_status=like.probability_status,
            forward_seconds=seconds,
            total_seconds=seconds,
        )


def _answers(logits: Logits) -> list[_Answer | SemifError]:
    """Give each row its logits; a number that is none is that row's error and no other's."""
    answers: list[_Answer | SemifError] = []
    for values, reused in zip(logits.logits, logits.reused, strict=True):
        if all(map(math.isfinite, values)):
            answers.append(_Answer(tuple(values), reused, logits.rows_max))
        else:
            _log.error("scoring failed", code=ScoringFailed().code, reason="a logit is not finite")
            answers.append(ScoringFailed())
    return answers
