"""One accepted request on its way through the queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from actor.engine.base import Outcome, Prepared, Scores

__all__ = ["Answer", "Job"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job's future holds: the scores, and how long the job waited for them."""

    scores: Scores
    queue_ms: float


@dataclass(slots=True, eq=False)
class Job:
    """A prepared request and the future that its handler awaits.

    A handler that gives up (deadline, shutdown) cancels the future: the job is then abandoned,
    and dropped before it reaches the GPU. Times are of the event loop's clock, in seconds.
    """

    prepared: Prepared
    caller: str
    """Who asks, as far as the bus can tell: callers get their turns at the GPU."""
    enqueued_s: float
    future: asyncio.Future[Answer]
    rows: int = field(init=False)
    """Prompts to score; kept, because the batcher asks often."""
    tokens: int = field(init=False)
    """Tokens to compute when the job is scored alone."""

    def __post_init__(self) -> None:
        self.rows = self.prepared.rows
        self.tokens = self.prepared.tokens

    @property
    def abandoned(self) -> bool:
        """True when nobody waits for this job any more."""
        return self.future.done()

    def resolve(self, outcome: Outcome, *, started_s: float) -> None:
        """Hand the outcome to the handler, if it still waits."""
        if self.future.done():
            return
        if isinstance(outcome, Scores):
            queue_ms = (started_s - self.enqueued_s) * 1000
            self.future.set_result(Answer(scores=outcome, queue_ms=queue_ms))
        else:
            self.future.set_exception(outcome)
