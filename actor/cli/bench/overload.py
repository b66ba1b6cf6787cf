"""Ten times the capacity offered: what is still answered, and how soon the rest is refused."""

from __future__ import annotations

import math

import msgspec

from actor.cli.bench.context import Bench
from actor.cli.bench.records import BenchFailed, Figure, Record, compared, observed, percentile
from actor.cli.bench.traffic import ANSWERED, Traffic, traffic_to
from actor.cli.bench.workload import score_body, short_rows

__all__ = ["measure"]

NAME = "overload"
FACTOR = 10
OVERLOADED = 429
PAYLOADS = 2048
"""Different decisions, asked again and again; short states are not kept by the prefix cache."""
CAPACITY_S = (0.5, 20.0)
"""Shortest and longest stretch on which the capacity is measured: a third of the overload's."""
GOODPUT = Figure(at_least=0.95)
REFUSAL_MS = Figure(at_most=50.0)
ALL = Figure(at_least=1.0, at_most=1.0)


async def measure(bench: Bench) -> list[Record]:
    """Measure the capacity, offer ten times as much, and measure the capacity again."""
    payloads = [score_body(row) for row in short_rows(PAYLOADS, 0)]
    capacity_s = min(max(bench.overload_s / 3, CAPACITY_S[0]), CAPACITY_S[1])
    bench.tell(f"overload, capacity for {capacity_s:.0f} s")
    before = await _capacity(bench, payloads, capacity_s)
    offered = FACTOR * before
    bench.tell(f"overload, {offered:.0f} requests/s for {bench.overload_s:.0f} s")
    async with traffic_to(bench.url, bench.subjects.score, payloads) as traffic:
        start_s, end_s = await traffic.open_loop(per_s=offered, seconds=bench.overload_s)
        await traffic.settle(within_s=_timeout_s(bench))
    bench.tell(f"overload, capacity again for {capacity_s:.0f} s")
    try:
        after = await _capacity(bench, payloads, capacity_s)
    except BenchFailed:
        after = math.nan  # the replies are counted, and worth more than this
    goodput = traffic.answered_per_s(start_s, end_s)
    return [_goodput(goodput, before, after), *_refusals(traffic, offered, bench.overload_s)]


def _goodput(goodput: float, before: float, after: float) -> Record:
    note = f"capacity before {before:.1f}, after {after:.1f} requests/s; their mean is the baseline"
    # A NaN reaches no figure: without the second capacity nothing is claimed.
    rounds = [(goodput, (before + after) / 2)]
    what = f"goodput at {FACTOR} times the capacity"
    return compared(NAME, what, "requests/s", rounds, by="share", figure=GOODPUT, note=note)


def _refusals(traffic: Traffic, offered: float, seconds: float) -> list[Record]:
    requests, statuses = len(traffic.sent_s), traffic.statuses()
    refused = traffic.latencies_s(OVERLOADED)
    kinds = ", ".join(f"{count} x {code}" for code, count in sorted(statuses.items()))
    sent_share = requests / (offered * seconds)
    p99_ms = percentile(refused, 0.99) * 1000
    note = f"{len(refused)} refused; the client sent {sent_share:.0%} of what it meant to"
    counted = compared(
        NAME,
        "replies",
        "replies",
        [(float(traffic.replies), float(requests))],
        by="share",
        figure=ALL,
        note=f"baseline: requests sent; {traffic.unanswered} unanswered; {kinds}",
    )
    return [
        observed(NAME, "refusals, p99", "ms", p99_ms, figure=REFUSAL_MS, note=note),
        msgspec.structs.replace(
            counted,
            invariant=True,
            reached=not traffic.unanswered and traffic.replies == requests,
        ),
    ]


async def _capacity(bench: Bench, payloads: list[bytes], seconds: float) -> float:
    """Give the rate of answers with the queue half full: always the next batch, never a refusal."""
    in_flight = max(bench.settings.queue_jobs_max // 2, 1)
    async with traffic_to(bench.url, bench.subjects.score, payloads) as traffic:
        start_s, end_s = await traffic.closed_loop(in_flight=in_flight, seconds=seconds)
        await traffic.settle(within_s=_timeout_s(bench))
        rate = traffic.answered_per_s(start_s, end_s)
        if not rate or set(traffic.statuses()) != {ANSWERED}:
            raise BenchFailed(f"no capacity to be had: replies {dict(traffic.statuses())}")
        return rate


def _timeout_s(bench: Bench) -> float:
    """Within the default timeout every request has its reply; some more for its way."""
    return bench.settings.timeout_ms_default / 1000 + 5
