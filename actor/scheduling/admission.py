"""Whether one more request may wait: by count and by bytes, refused at once and by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from schemas.errors import Overloaded

__all__ = ["Admission"]

RETRY_AFTER_MS_MIN = 10
RATE_WEIGHT = 0.2
"""Weight of the newest request in the running mean of seconds for each request."""


class Admission:
    """Permits for requests between receipt and reply.

    Pure bookkeeping for one thread (the event loop's): no clock, no waiting.
    """

    def __init__(self, *, jobs_max: int, bytes_max: int) -> None:
        self.jobs_max = jobs_max
        self.bytes_max = bytes_max
        self.jobs = 0
        self.bytes = 0
        self._seconds_each = 0.0

    @contextmanager
    def permit(self, nbytes: int) -> Iterator[None]:
        """Hold room for one request of ``nbytes``; raises :class:`Overloaded` when there is none.

        A request larger than ``bytes_max`` is let in when nothing else is there: it could never
        enter otherwise, and a caller told to retry would retry for ever.
        """
        if self.jobs >= self.jobs_max:
            raise self.refusal("The queue is full by count", self.jobs_max, "requests")
        if self.jobs and self.bytes + nbytes > self.bytes_max:
            raise self.refusal("The queue is full by size", self.bytes_max, "bytes")
        self.jobs += 1
        self.bytes += nbytes
        try:
            yield
        finally:
            self.jobs -= 1
            self.bytes -= nbytes

    def refusal(self, what: str, limit: int, unit: str) -> Overloaded:
        """Give the refusal, with the time that the present queue will take."""
        wait_ms = round(self._seconds_each * self.jobs * 1000)
        return Overloaded(
            what, limit=limit, unit=unit, retry_after_ms=max(wait_ms, RETRY_AFTER_MS_MIN)
        )

    def observe(self, seconds: float) -> None:
        """Learn how long the model took for one request."""
        weight = RATE_WEIGHT if self._seconds_each else 1.0
        self._seconds_each += weight * (seconds - self._seconds_each)
