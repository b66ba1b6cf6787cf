"""Counts and latencies of requests, as heartbeats show them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

from schemas.errors import DeadlineExceeded, OutOfMemory, ScoringFailed
from schemas.health import Counters, LatencyHealth

__all__ = ["Meter"]

WINDOW_S = 60.0
SAMPLES_MAX = 10_000
"""Latencies kept; under heavier load the window is shorter than a minute, never the memory more."""


class Meter:
    """One owner's counters: everything is called on the event loop. ``clock`` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.received = 0
        self.answered = 0
        self.unanswerable = 0
        self.replies_dropped = 0
        self.refused: Counter[str] = Counter()
        self._latencies: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)

    def answer(self, latency_s: float) -> None:
        """Count a request answered with a result."""
        self.answered += 1
        self._latencies.append((self._clock(), latency_s))

    def drop_unreadable(self) -> None:
        """Count a message whose reply subject is none."""
        self.received += 1
        self.unanswerable += 1

    def counters(self) -> Counters:
        """Give the counts since the start."""
        return Counters(
            received=self.received,
            answered=self.answered,
            refused=dict(self.refused),
            expired=self.refused[DeadlineExceeded.code],
            failed=self.refused[ScoringFailed.code],
            oom=self.refused[OutOfMemory.code],
            unanswerable=self.unanswerable,
            replies_dropped=self.replies_dropped,
        )

    def latency(self) -> LatencyHealth:
        """Give the latency of the last minute, in milliseconds."""
        oldest_s = self._clock() - WINDOW_S
        while self._latencies and self._latencies[0][0] < oldest_s:
            self._latencies.popleft()
        values = sorted(latency_s for _, latency_s in self._latencies)
        return LatencyHealth(
            samples=len(values), p50_ms=_percentile(values, 50), p99_ms=_percentile(values, 99)
        )


def _percentile(values: list[float], percent: int) -> float:
    """Give the nearest-rank percentile of sorted seconds, in milliseconds; 0 without values."""
    if not values:
        return 0.0
    rank = -(-len(values) * percent // 100)  # ceil, in integers
    return values[rank - 1] * 1000
