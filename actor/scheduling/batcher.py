"""Which jobs go to the GPU next: today one at a time, in order of arrival."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from actor.scheduling.job import Job

__all__ = ["Batcher"]


class Batcher:
    """The waiting jobs. Pure: no clock, no asyncio, no I/O; one thread uses it."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, job: Job) -> None:
        """Add a job behind all others."""
        self._waiting.append(job)

    def discard(self, job: Job) -> None:
        """Let go of a job that waits; one that was taken before is none of ours."""
        with suppress(ValueError):
            self._waiting.remove(job)

    def next_batch(self) -> list[Job]:
        """Take the jobs to score together; empty when none waits. Abandoned ones are dropped."""
        while self._waiting:
            job = self._waiting.popleft()
            if not job.abandoned:
                return [job]
        return []

    def take_all(self) -> list[Job]:
        """Take every waiting job, to fail it."""
        jobs = list(self._waiting)
        self._waiting.clear()
        return jobs

    def oldest_enqueued_s(self) -> float | None:
        """Give the arrival time of the job that has waited longest, if any waits."""
        return next((job.enqueued_s for job in self._waiting if not job.abandoned), None)
