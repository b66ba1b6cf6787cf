"""The engine: encoder, scorer and guard together; SemIf's rows inside, records outside."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actor.engine.base import (
    CanaryFailed,
    DecisionResult,
    Outcome,
    Prepared,
    Prompt,
    Question,
    Scores,
    Work,
)
from actor.engine.encoding import PromptEncoder, row_of
from actor.engine.fast_batches import FastBatches
from actor.engine.guard import guarded
from actor.engine.memory import DeviceMemory
from actor.engine.plain_encoding import PlainEncoder
from actor.engine.prefix_cache import PrefixCache
from actor.engine.reference_scorer import ReferenceScorer
from schemas.decision import ModelInfo
from schemas.errors import OutOfMemory, SemifError
from schemas.health import EngineHealth, PrefixCacheHealth

__all__ = ["Canary", "TorchEngine", "group_rows"]

Row = dict[str, Any]
Result = DecisionResult | SemifError

LOGIT_TOLERANCE = {"float32": 1e-3, "float16": 0.0625, "bfloat16": 0.5}
"""How far a logit of the canary may move: a few steps of the format at a magnitude of 32."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A decision and the logits it had when the actor started."""

    row: Row
    prompt: Prompt
    logits: tuple[float, ...]


@dataclass(slots=True)
class _Run:
    """What the calls of the scorer for one request added up to."""

    batch_rows: int = 0
    prefix_tokens_reused: int = 0


@dataclass(frozen=True, slots=True)
class TorchEngine:
    """A loaded model behind the :class:`~actor.engine.base.Engine` protocol."""

    torch: Any
    encoder: PromptEncoder | PlainEncoder
    reference: ReferenceScorer
    memory: DeviceMemory
    batch_tokens_max: int
    batch_rows_max: int
    known: Canary
    fast: FastBatches | None = None
    """The fast scorer; without it SemIf's own functions score one request after another."""

    @property
    def scorer(self) -> str:
        """Name of the scorer in use."""
        return self.reference.name if self.fast is None else self.fast.scorer.name

    @property
    def model(self) -> ModelInfo:
        """SemIf's metadata of the model."""
        return self.reference.info

    def prepare(self, work: Work) -> Prepared:
        """Check and tokenise every prompt; an error of one question stays in its place."""
        questions: list[Question | SemifError] = []
        prompts: list[Prompt | None] = []
        for index, question in enumerate(work.questions):
            prompt = None
            if isinstance(question, Question):
                at = f"decisions[{index}]." if work.shared else ""
                try:
                    prompt = self.encoder.encode(work.state, question, at=at)
                except SemifError as error:
                    question = error.with_traceback(None)  # noqa: PLW2901 - its outcome from here
            if isinstance(question, SemifError) and not work.shared:
                raise question
            questions.append(question)
            prompts.append(prompt)
        return Prepared.of(work, tuple(questions), tuple(prompts))

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """Score the requests together when the scorer can, else in turn."""
        if self.fast is not None:
            return self.fast.score(batch)
        return [self._score_request(prepared) for prepared in batch]

    def canary(self) -> None:
        """Ask the known decision again; any other answer raises :class:`CanaryFailed`."""
        try:
            found = self._ask_known()
        except SemifError as error:
            raise CanaryFailed(error.code) from None
        tolerance = LOGIT_TOLERANCE[self.model.dtype]
        moved = max(abs(a - b) for a, b in zip(found, self.known.logits, strict=True))
        if not moved <= tolerance:  # a NaN is not within anything
            raise CanaryFailed(f"a logit moved by {moved:g}, the tolerance is {tolerance:g}")

    def _ask_known(self) -> tuple[float, ...]:
        if self.fast is not None:
            return self.fast.logits(self.known.prompt)[: len(self.known.logits)]
        return self._guarded_score(self.known.row).option_logits

    def health(self) -> EngineHealth:
        """Give the model's metadata and the device's memory."""
        device = self.memory.device
        return EngineHealth(
            model=self.model,
            scorer=self.scorer,
            device=device.name,
            device_name=device.title,
            memory_allocated_bytes=self.memory.allocated_bytes(),
            memory_reserved_bytes=self.memory.reserved_bytes(),
            memory_cap_bytes=self.memory.cap_bytes,
            memory_resting_bytes=self.memory.resting_bytes,
            tokens_max=self.encoder.tokens_max,
            attention="sdpa" if self.fast is None else self.fast.scorer.kernel_name,
            prefix_cache=None if self.fast is None else _cache_health(self.fast.scorer.cache),
        )

    def _score_request(self, prepared: Prepared) -> Outcome:
        started = time.perf_counter()
        run = _Run()
        results: list[Result] = []
        if prepared.work.shared:
            results = self._score_shared(prepared, run)
        else:
            [question] = prepared.questions
            if isinstance(question, SemifError):
                return question
            try:
                results = [self._guarded_score(row_of(prepared.work.state, question))]
            except SemifError as error:
                return error.with_traceback(None)
            run.batch_rows = 1
        return Scores(
            results=tuple(results),
            forward_ms=(time.perf_counter() - started) * 1000,
            batch_rows=run.batch_rows,
            prefix_tokens_reused=run.prefix_tokens_reused,
        )

    def _score_shared(self, prepared: Prepared, run: _Run) -> list[Result]:
        """Score the questions that are left, in groups within the batch limits."""
        questions = list(enumerate(prepared.questions))
        results: dict[int, Result] = {i: q for i, q in questions if isinstance(q, SemifError)}
        askable = [(i, q) for i, q in questions if isinstance(q, Question)]
        lengths = [len(prompt.ids) for prompt in prepared.prompts if prompt is not None]
        groups = group_rows(
            lengths,
            tokens_max=self.batch_tokens_max,
            rows_max=self.batch_rows_max,
        )
        for group in groups:
            asked = [askable[position] for position in group]
            rows = [row_of(prepared.work.state, question) for _, question in asked]
            for (index, _), result in zip(asked, self._score_group(rows, run), strict=True):
                results[index] = result
        return [results[index] for index, _ in questions]

    def _score_group(self, rows: list[Row], run: _Run, *, may_split: bool = True) -> list[Result]:
        """Score rows together; when they do not fit the memory, each half by itself, once.

        The halves are tried outside the ``except`` block, as in the guard: inside it the first
        error would stay alive, and be the context of theirs.
        """
        try:
            results, prefix_tokens = guarded(
                self.torch, self.memory, lambda: self._checked_shared(rows)
            )
        except SemifError as error:
            failure = error.with_traceback(None)
        else:
            run.batch_rows = max(run.batch_rows, len(rows))
            run.prefix_tokens_reused += prefix_tokens * (len(rows) - 1)
            return list(results)
        if isinstance(failure, OutOfMemory) and may_split and len(rows) > 1:
            half = len(rows) // 2
            first = self._score_group(rows[:half], run, may_split=False)
            return first + self._score_group(rows[half:], run, may_split=False)
        return [failure] * len(rows)

    def _guarded_score(self, row: Row) -> DecisionResult:
        return guarded(self.torch, self.memory, lambda: _finite(self.reference.score(row)))

    def _checked_shared(self, rows: list[Row]) -> tuple[list[DecisionResult], int]:
        results, prefix_tokens = self.reference.score_shared(rows)
        return [_finite(result) for result in results], prefix_tokens


def group_rows(tokens: Sequence[int], *, tokens_max: int, rows_max: int) -> list[list[int]]:
    """Give the positions of ``tokens`` in groups, in order, each within the two limits.

    SemIf copies the prefix's keys and values for each row and pads each row to the longest, so a
    group costs memory as if all its prompts were as long as its longest. A prompt longer than
    ``tokens_max`` is alone in its group.
    """
    groups: list[list[int]] = []
    longest = 0
    for position, count in enumerate(tokens):
        longest = max(longest, count)
        if (
            not groups
            or len(groups[-1]) == rows_max
            or (len(groups[-1]) + 1) * longest > tokens_max
        ):
            groups.append([])
            longest = count
        groups[-1].append(position)
    return groups


def _cache_health(cache: PrefixCache[Any]) -> PrefixCacheHealth:
    counts = cache.counts
    return PrefixCacheHealth(
        entries=len(cache),
        bytes=cache.bytes,
        bytes_max=cache.bytes_max,
        hits=counts.hits,
        misses=counts.misses,
        evictions=counts.evictions,
        refused=counts.too_large,
    )


def _finite(result: DecisionResult) -> DecisionResult:
    if not all(map(math.isfinite, (*result.option_logits, *result.probabilities))):
        raise ValueError("a logit or probability is not finite")
    return result
