"""Decisions over the bus against SemIf's own functions in this process.

The sides take turns, and which begins changes each round: two models on the same cores at once
would measure the scheduler of the operating system.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from actor.cli.bench.baseline import SETTLE_S, SemIf
from actor.cli.bench.context import Bench
from actor.cli.bench.records import Figure, Record, Round, compared
from actor.cli.bench.workload import (
    QUESTIONS,
    Row,
    score_body,
    shared_body,
    short_rows,
    state_of,
    state_rows,
)

__all__ = ["in_turns", "measure_hits", "measure_shared", "measure_short", "measure_singles"]

SHARED = {20: 1.2, 200: 1.3, 800: 1.45}
"""Words of the state, and the speedup to reach."""
HITS = {800: 2.2, 2000: 3.5}
SINGLES_STATES = 4
SINGLES_WORDS = 800
SINGLES_SAMPLE = 4
"""Decisions of each round that the baseline scores; its time is scaled to all of them."""
SINGLES = Figure(at_least=8.0)
SHORT_COUNT = 64
SHORT = Figure(at_least=1.8)

Side = Callable[[], Awaitable[float]]


async def measure_shared(bench: Bench, semif: SemIf) -> list[Record]:
    """``score_shared`` over states that nobody has seen before."""
    return [
        await _shared(bench, semif, words, Figure(at_least=least), known=False)
        for words, least in SHARED.items()
    ]


async def measure_hits(bench: Bench, semif: SemIf) -> list[Record]:
    """``score_shared`` over states of which other questions have been asked before."""
    return [
        await _shared(bench, semif, words, Figure(at_least=least), known=True)
        for words, least in HITS.items()
    ]


async def measure_singles(bench: Bench, semif: SemIf) -> list[Record]:
    """Ask the questions of several states as single messages, all at once, in random order."""
    rounds: list[Round] = []
    for number in range(bench.rounds):
        bench.tell(f"singles, round {number + 1} of {bench.rounds}")
        rows = [
            row
            for state in range(SINGLES_STATES)
            for row in state_rows(state_of(SINGLES_WORDS, _seed("singles", number, state)))
        ]
        random.Random(number).shuffle(rows)  # noqa: S311 - the same order each run
        sample = rows[:SINGLES_SAMPLE]

        def ours(rows: Sequence[Row] = rows) -> Awaitable[float]:
            return _all_at_once(bench, rows)

        async def baseline(
            sample: Sequence[Row] = sample, scale: float = len(rows) / SINGLES_SAMPLE
        ) -> float:
            return await semif.score(sample) * scale

        rounds.append(await in_turns(number, ours, baseline))
    count = SINGLES_STATES * len(QUESTIONS)
    what = f"{count} decisions over {SINGLES_STATES} states of {SINGLES_WORDS} words, random order"
    note = f"baseline: score on {SINGLES_SAMPLE} of the {count} each round, scaled"
    return [compared("singles", what, "s", rounds, by="speedup", figure=SINGLES, note=note)]


async def measure_short(bench: Bench, semif: SemIf) -> list[Record]:
    """Ask over short states, all different and all at once; and what that makes of the hardware."""
    rounds: list[Round] = []
    flops: list[Round] = []
    per_token = semif.flop_per_token()
    for number in range(bench.rounds):
        bench.tell(f"short, round {number + 1} of {bench.rounds}")
        rows = short_rows(SHORT_COUNT, _seed("short", number, 0))

        def ours(rows: Sequence[Row] = rows) -> Awaitable[float]:
            return _all_at_once(bench, rows)

        def baseline(rows: Sequence[Row] = rows) -> Awaitable[float]:
            return semif.score(rows)

        seconds = await in_turns(number, ours, baseline)
        rounds.append(seconds)
        unique = semif.unique_tokens(rows)
        best = await semif.best_product_flops()
        await asyncio.sleep(SETTLE_S)
        flops.append((per_token * unique / seconds[0] / 1e9, best / 1e9))
    what = f"{SHORT_COUNT} different short states as single messages"
    note = "baseline: the fastest product of the model's own matrices in this run"
    return [
        compared("short", what, "s", rounds, by="speedup", figure=SHORT),
        compared("short", "unique-token GFLOP/s", "GFLOP/s", flops, by="share", note=note),
    ]


async def _shared(bench: Bench, semif: SemIf, words: int, figure: Figure, *, known: bool) -> Record:
    """Compare ``score_shared`` on a fresh state each round."""
    name = "hits" if known else "shared"
    rounds: list[Round] = []
    for number in range(bench.rounds):
        bench.tell(f"{name}, {words} words, round {number + 1} of {bench.rounds}")
        rows = state_rows(state_of(words, _seed(name, number, words)))
        if known:
            others = state_rows(rows[0]["state"], [("Is it short?", ("Yes", "No"))] * 2)
            await bench.ask(shared_body(others), shared=True)
            await asyncio.sleep(SETTLE_S)

        async def ours(rows: Sequence[Row] = rows) -> float:
            seconds = await bench.ask(shared_body(rows), shared=True)
            await asyncio.sleep(SETTLE_S)
            return seconds

        def baseline(rows: Sequence[Row] = rows) -> Awaitable[float]:
            return semif.score_shared(rows)

        rounds.append(await in_turns(number, ours, baseline))
    what = f"score_shared, {len(QUESTIONS)} questions, {words} words"
    note = "the state was asked about before; SemIf keeps nothing between calls" if known else ""
    return compared(name, what, "ms", _in_ms(rounds), by="speedup", figure=figure, note=note)


async def _all_at_once(bench: Bench, rows: Sequence[Row]) -> float:
    """Give the seconds from the first request to the last reply."""
    payloads = [score_body(row) for row in rows]
    started = time.perf_counter()
    await asyncio.gather(*(bench.ask(payload, shared=False) for payload in payloads))
    seconds = time.perf_counter() - started
    await asyncio.sleep(SETTLE_S)
    return seconds


async def in_turns(number: int, ours: Side, baseline: Side) -> Round:
    """Run both sides of a round, ours first in the even ones."""
    if number % 2:
        theirs = await baseline()
        return await ours(), theirs
    mine = await ours()
    return mine, await baseline()


def _in_ms(rounds: Sequence[Round]) -> list[Round]:
    return [(ours * 1000, baseline * 1000) for ours, baseline in rounds]


def _seed(*parts: object) -> int:
    """Give a seed of its own for each state, so that none has been seen before."""
    return random.Random(repr(parts)).randrange(2**48)  # noqa: S311 - no secret
