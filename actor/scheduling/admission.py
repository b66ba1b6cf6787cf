"""Whether one more request may wait: by count, bytes and tokens, refused at once and by name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from schemas.errors import Overloaded

__all__ = ["Admission"]

RETRY_AFTER_MS_MIN = 10
DEADLINE_SHARE = 0.8
"""A request is let in when the queue takes less than this share of its time: rates vary."""
RATE_WEIGHT = 0.2
"""Weight of the newest batch in the running means."""


class Admission:
    """Permits for requests between receipt and reply.

    Count and bytes are known at receipt, tokens once the prompts are encoded: one permit each.
    Pure bookkeeping for one thread (the event loop's): no clock, no waiting.
    """

    def __init__(self, *, jobs_max: int, bytes_max: int, tokens_max: int) -> None:
        self.jobs_max = jobs_max
        self.bytes_max = bytes_max
        self.tokens_max = tokens_max
        self.jobs = 0
        self.bytes = 0
        self.tokens = 0
        self._encoded = 0
        self._seconds_each = 0.0
        self._seconds_a_token = 0.0

    @contextmanager
    def permit(self, nbytes: int, *, within_s: float = math.inf) -> Iterator[None]:
        """Hold room for one request of ``nbytes``; raises :class:`Overloaded` when there is none.

        Nor is one let in behind a queue that takes longer than ``within_s``, the time it has: it
        would take a place, and perhaps the model's time, for an answer that comes too late.

        A request larger than ``bytes_max`` is let in when nothing else is there: it could never
        enter otherwise, and a caller told to retry would retry for ever.
        """
        if self.jobs >= self.jobs_max:
            raise self.refusal("The queue is full by count", self.jobs_max, "requests")
        if self.jobs and self.bytes + nbytes > self.bytes_max:
            raise self.refusal("The queue is full by size", self.bytes_max, "bytes")
        if self.tokens >= self.tokens_max:  # whatever it holds: refused before it is encoded
            raise self.refusal("The queue is full by tokens", self.tokens_max, "tokens")
        self._check_deadline(within_s)
        self.jobs += 1
        self.bytes += nbytes
        try:
            yield
        finally:
            self.jobs -= 1
            self.bytes -= nbytes

    @contextmanager
    def permit_tokens(self, tokens: int, *, within_s: float = math.inf) -> Iterator[None]:
        """Hold room for the tokens of a request that has its :meth:`permit`, or raise as it does.

        A request larger than ``tokens_max`` is let in when no other tokens are held.
        """
        if self.tokens and self.tokens + tokens > self.tokens_max:
            raise self.refusal("The queue is full by tokens", self.tokens_max, "tokens")
        self._check_deadline(within_s)
        self._encoded += 1
        self.tokens += tokens
        try:
            yield
        finally:
            self._encoded -= 1
            self.tokens -= tokens

    def _check_deadline(self, within_s: float) -> None:
        """Refuse behind a queue that takes too long.

        By the tokens that are held: requests not yet encoded may be of any size, and the mean of
        the last ones, long documents perhaps, would refuse a burst of short ones.
        """
        if self.tokens * self._seconds_a_token > within_s * DEADLINE_SHARE:
            limit_ms = round(within_s * 1000)
            raise self.refusal("The queue takes longer than the deadline allows", limit_ms, "ms")

    def refusal(self, what: str, limit: int, unit: str) -> Overloaded:
        """Give the refusal, with the time that the present queue will take."""
        return Overloaded(
            what,
            limit=limit,
            unit=unit,
            retry_after_ms=max(round(self.wait_s() * 1000), RETRY_AFTER_MS_MIN),
        )

    def wait_s(self) -> float:
        """Give the seconds that the present queue will take, by the rate that was measured.

        A request counts by its tokens; one that is not encoded yet counts as the mean request.
        """
        unread = self.jobs - self._encoded
        return self.tokens * self._seconds_a_token + unread * self._seconds_each

    def observe(self, seconds: float, *, jobs: int, tokens: int) -> None:
        """Learn how long the model took for a batch."""
        self._seconds_each = _mean(self._seconds_each, seconds / jobs)
        if tokens:  # a batch whose every question was refused before has none
            self._seconds_a_token = _mean(self._seconds_a_token, seconds / tokens)


def _mean(mean: float, newest: float) -> float:
    """Move a running mean towards the newest value; the first value is the mean."""
    return mean + (RATE_WEIGHT if mean else 1.0) * (newest - mean)
