"""What the server costs: an engine that returns at once, against a bare responder of nats-py."""

from __future__ import annotations

from statistics import median

from actor.cli.bench.context import Bench
from actor.cli.bench.processes import INSTANT, running_actor, running_echo
from actor.cli.bench.records import BenchFailed, Figure, Record, Round, compared
from actor.cli.bench.traffic import ANSWERED, Traffic, traffic_to
from actor.cli.bench.workload import score_body, short_rows

__all__ = ["measure"]

NAME = "bus"
ECHO_SUBJECT = "echo"
IN_FLIGHT = 64
LOOP_S = 2.0
ALONE = 500
REPLIES_WITHIN_S = 10.0
THROUGHPUT = Figure(at_least=0.5)
ADDED_MS = Figure(at_most=0.4)


async def measure(bench: Bench, *, loop_s: float = LOOP_S, alone: int = ALONE) -> list[Record]:
    """Measure throughput and latency of both, in turns, through one client at a time."""
    payloads = [score_body(row) for row in short_rows(IN_FLIGHT, 0)]
    log = bench.folder / "instant.log"
    bench.tell("bus, the two responders start")
    rates: list[Round] = []
    latencies_ms: list[Round] = []
    async with (
        running_echo(bench.url, ECHO_SUBJECT),
        running_actor(bench.client, bench.environment, log, INSTANT),
    ):
        for number in range(bench.rounds):
            bench.tell(f"bus, round {number + 1} of {bench.rounds}")
            sides: dict[str, Round] = {}
            subjects = [bench.subjects.score, ECHO_SUBJECT]
            for subject in subjects if number % 2 else subjects[::-1]:
                rate = await _throughput(bench.url, subject, payloads, loop_s)
                sides[subject] = (rate, await _alone_ms(bench.url, subject, payloads, alone))
            (our_rate, our_ms), (echo_rate, echo_ms) = (sides[subject] for subject in subjects)
            rates.append((our_rate, echo_rate))
            latencies_ms.append((our_ms, echo_ms))
    what = f"throughput, {IN_FLIGHT} in flight"
    return [
        compared(NAME, what, "requests/s", rates, by="share", figure=THROUGHPUT),
        compared(NAME, "p50, one at a time", "ms", latencies_ms, by="added", figure=ADDED_MS),
    ]


async def _throughput(url: str, subject: str, payloads: list[bytes], seconds: float) -> float:
    async with traffic_to(url, subject, payloads) as traffic:
        start_s, end_s = await traffic.closed_loop(in_flight=IN_FLIGHT, seconds=seconds)
        await traffic.settle(within_s=REPLIES_WITHIN_S)
        _check(traffic, subject)
        return traffic.answered_per_s(start_s, end_s)


async def _alone_ms(url: str, subject: str, payloads: list[bytes], count: int) -> float:
    async with traffic_to(url, subject, payloads) as traffic:
        await traffic.one_at_a_time(count, within_s=REPLIES_WITHIN_S)
        _check(traffic, subject)
        return median(traffic.latencies_s(ANSWERED)) * 1000


def _check(traffic: Traffic, subject: str) -> None:
    """A number over refusals or lost replies would mean nothing."""
    statuses = traffic.statuses()
    if traffic.unanswered or set(statuses) != {ANSWERED}:
        raise BenchFailed(f"{subject}: {traffic.unanswered} unanswered, replies {dict(statuses)}")
