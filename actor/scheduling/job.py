"""One accepted request on its way through the queue."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import msgspec

from actor.engine.base import Outcome, Prepared, Scores

__all__ = ["Answer", "Job"]


class Answer(msgspec.Struct, frozen=True):
    """What a job's future holds: the scores, and how long the job waited for them."""

    scores: Scores
    queue_ms: float


@dataclass(slots=True, eq=False)
class Job:
    """A prepared request and the future that its handler awaits.

    A handler that gives up (deadline, shutdown) cancels the future: the job is then abandoned,
    and dropped before it reaches the GPU.
    """

    prepared: Prepared
    caller: str
    """Who asks, as far as the bus can tell: callers get their turns at the GPU."""
    enqueued_s: float
    """Of ``time.monotonic``: the event loop's own clock may tick in milliseconds."""
    future: asyncio.Future[Answer]
    deadline_s: float = math.inf
    """When its caller stops waiting."""
    background: bool = False
    """May wait until nothing else does."""

    @property
    def rows(self) -> int:
        """Prompts to score."""
        return self.prepared.rows

    @property
    def tokens(self) -> int:
        """Tokens to compute when the job is scored alone."""
        return self.prepared.tokens

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
