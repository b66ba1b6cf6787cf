"""Counts and percentiles, against figures worked out by hand."""

from __future__ import annotations

import pytest

from actor.telemetry.meter import SAMPLES_MAX, Meter


class Clock:
    """A clock that a test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_percentiles_are_nearest_rank() -> None:
    """Of 1..100 ms the median is 50 ms and the 99th percentile 99 ms; of one value, that value."""
    meter = Meter(Clock())
    for value in range(100, 0, -1):
        meter.answer(value / 1000)

    latency = meter.latency()

    assert (latency.samples, round(latency.p50_ms), round(latency.p99_ms)) == (100, 50, 99)
    single = Meter(Clock())
    single.answer(0.25)
    assert (single.latency().p50_ms, single.latency().p99_ms) == (250.0, 250.0)


def test_only_the_last_minute_counts() -> None:
    """What is older than 60 s is forgotten; the count of answers is not."""
    clock = Clock()
    meter = Meter(clock)
    meter.answer(9.0)
    clock.now_s += 59
    meter.answer(1.0)
    assert meter.latency().samples == 2

    clock.now_s += 2

    assert (meter.latency().samples, meter.latency().p99_ms) == (1, 1000.0)
    clock.now_s += 60
    assert (meter.latency().samples, meter.latency().p50_ms) == (0, 0.0)
    assert meter.counters().answered == 2


def test_memory_is_bounded() -> None:
    """However many answers a minute holds, the samples kept have a limit."""
    meter = Meter(Clock())
    for _ in range(SAMPLES_MAX + 100):
        meter.answer(0.001)

    assert meter.latency().samples == SAMPLES_MAX


def test_refusals_are_counted_by_code() -> None:
    """Three of the codes have a counter of their own as well."""
    meter = Meter(Clock())
    for code, count in {"deadline_exceeded": 1, "scoring_failed": 2, "out_of_memory": 3}.items():
        meter.refused[code] += count
    meter.refused["invalid"] += 4

    counters = meter.counters()

    assert (counters.expired, counters.failed, counters.oom) == (1, 2, 3)
    assert sum(counters.refused.values()) == 10


@pytest.mark.parametrize(
    ("values", "p50", "p99"),
    [
        ([], 0, 0),
        ([7], 7, 7),
        ([1, 2], 1, 2),
        ([1, 2, 3], 2, 3),
        (list(range(1, 201)), 100, 198),
        ([5] * 99 + [900], 5, 5),
        ([5] * 98 + [900] * 2, 5, 900),
    ],
    ids=["none", "one", "two", "three", "1..200", "one slow of 100", "two slow of 100"],
)
def test_percentiles_by_hand(values: list[int], p50: int, p99: int) -> None:
    """Nearest rank: the smallest value that at least so many of a hundred do not exceed."""
    meter = Meter(Clock())
    for value in reversed(values):
        meter.answer(value / 1000)

    latency = meter.latency()

    assert [latency.p50_ms, latency.p99_ms] == pytest.approx([p50, p99])


def test_at_sixty_seconds_a_sample_still_counts() -> None:
    """The window's edge belongs to it."""
    clock = Clock()
    meter = Meter(clock)
    meter.answer(1.0)

    clock.now_s += 60
    assert meter.latency().samples == 1
    clock.now_s += 0.001
    assert meter.latency().samples == 0


def test_the_counts_handed_out_do_not_change_later() -> None:
    """A heartbeat in the making is of one moment."""
    meter = Meter(Clock())
    meter.refused["invalid"] += 1

    before = meter.counters()
    meter.refused["invalid"] += 1

    assert before.refused == {"invalid": 1}
