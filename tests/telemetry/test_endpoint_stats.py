"""Counts of endpoints, against figures worked out by hand."""

from __future__ import annotations

import weakref

from actor.telemetry.endpoint_stats import EndpointCounters
from schemas.errors import DeadlineExceeded, ScoringFailed


def test_errors_are_requests_too_and_each_endpoint_has_its_own() -> None:
    """Of 4 requests in 10 ms 2 are errors; 2.5 ms each; the other endpoint has none."""
    counters = EndpointCounters(("a", "b"))
    for milliseconds, error in (
        (1, None),
        (2, ScoringFailed()),
        (3, DeadlineExceeded()),
        (4, None),
    ):
        counters.observe("a", milliseconds / 1000, error)

    figures = counters.figures("a")

    assert (figures.requests, figures.errors) == (4, 2)
    assert (figures.processing_ns, figures.average_ns) == (10_000_000, 2_500_000)
    assert figures.last_error == (
        "deadline_exceeded: The deadline passed before an answer was ready"
    )
    other = counters.figures("b")
    assert (other.requests, other.errors, other.processing_ns) == (0, 0, 0)
    assert (other.average_ns, other.last_error) == (0, "")


def test_durations_are_whole_nanoseconds() -> None:
    """A third of a second is 333,333,333 ns; three of them divide without a rest lost."""
    counters = EndpointCounters(("a",))
    for _ in range(3):
        counters.observe("a", 1 / 3)

    assert counters.figures("a").processing_ns == 999_999_999
    assert counters.figures("a").average_ns == 333_333_333


def test_the_last_error_is_not_kept_alive() -> None:
    """An exception holds its frames, and they hold the request: the text alone is kept."""
    counters = EndpointCounters(("a",))
    error = ScoringFailed("a secret")
    alive = weakref.ref(error)
    counters.observe("a", 0.1, error)

    del error

    assert alive() is None
    assert counters.figures("a").last_error == "scoring_failed: The model gave no usable answer"
