"""Live work first: what may wait is scored when nothing else waits."""

from __future__ import annotations

from actor.scheduling.batcher import Batcher
from actor.scheduling.job import Job

__all__ = ["Lanes"]


class Lanes:
    """Two queues under the same limits; the background one is served while the live one is empty.

    A background job may wait for ever: whoever asks for one says that it has the time.
    """

    def __init__(self, *, tokens_max: int, rows_max: int) -> None:
        self._live = Batcher(tokens_max=tokens_max, rows_max=rows_max)
        self._background = Batcher(tokens_max=tokens_max, rows_max=rows_max)

    def __len__(self) -> int:
        return len(self._live) + len(self._background)

    def append(self, job: Job) -> None:
        """Add a job behind all others of its lane."""
        self._lane_of(job).append(job)

    def discard(self, job: Job) -> None:
        """Let go of a job that waits; one that was taken before is none of ours."""
        self._lane_of(job).discard(job)

    def next_batch(self) -> list[Job]:
        """Take the jobs to score together; empty when none waits."""
        return self._live.next_batch() or self._background.next_batch()

    def take_all(self) -> list[Job]:
        """Take every waiting job, to fail it."""
        return self._live.take_all() + self._background.take_all()

    def in_turn(self) -> list[Job]:
        """Give the waiting live jobs about as they will be served; they stay."""
        return self._live.in_turn()

    def oldest_enqueued_s(self) -> float | None:
        """Give the arrival time of the live job that has waited longest, if any waits."""
        return self._live.oldest_enqueued_s()

    def _lane_of(self, job: Job) -> Batcher:
        return self._background if job.background else self._live
