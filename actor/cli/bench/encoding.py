"""What a prompt costs before it is scored: the engine's encoder against SemIf's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from actor.cli.bench.baseline import load_tokenizer
from actor.cli.bench.context import Bench
from actor.cli.bench.records import BenchFailed, Figure, Record, Round, compared
from actor.cli.bench.workload import Row, state_of, state_rows
from actor.engine.base import Question
from schemas.decision import Option

__all__ = ["measure"]

FIGURES = {2: Figure(at_most=1 / 4), 16: Figure(at_most=1 / 10)}
"""Options of a decision, and the share of SemIf's time to reach."""
WORDS = (20, 200)
ROWS = 40
"""Different prompts in each round."""


async def measure(bench: Bench) -> list[Record]:
    """Compare both encoders, on one thread that is not the event loop's."""
    return await asyncio.to_thread(_measure, bench)


def _measure(bench: Bench) -> list[Record]:
    from semif_phase1 import direct  # noqa: PLC0415

    from actor.engine.binding import bind  # noqa: PLC0415
    from actor.engine.plain_encoding import PlainEncoder  # noqa: PLC0415

    if bench.settings.model is None:
        raise BenchFailed("no model, no tokenizer")
    tokens_max = bench.settings.max_tokens
    tokenizer = load_tokenizer(bench.settings.model)
    encoder = PlainEncoder(bind(), tokenizer, tokens_max=tokens_max)

    def ours(row: Row) -> object:
        return encoder.encode(row["state"], _question_of(row))

    def baseline(row: Row) -> object:
        return direct.encode_prompt(tokenizer, row, tokens_max)

    return [
        _compare(bench, options, words, ours, baseline) for options in FIGURES for words in WORDS
    ]


def _compare(
    bench: Bench,
    options: int,
    words: int,
    ours: Callable[[Row], object],
    baseline: Callable[[Row], object],
) -> Record:
    question = ("What is it about?", tuple(f"It is about topic {n}" for n in range(options)))
    rounds: list[Round] = []
    bench.tell(f"encoding, {options} options, {words} words")
    for number in range(bench.rounds):
        rows = [
            state_rows(state_of(words, number * ROWS + index), [question])[0]
            for index in range(ROWS)
        ]
        # Row by row in turns: either side finds words in the tokenizer's cache that the other left.
        times = [
            (_ms(ours, row), _ms(baseline, row))
            if index % 2
            else (_ms(baseline, row), _ms(ours, row))[::-1]
            for index, row in enumerate(rows)
        ]
        rounds.append((median(a for a, _ in times), median(b for _, b in times)))
    what = f"a prompt of {words} words, {options} options"
    return compared("encoding", what, "ms", rounds, by="share", figure=FIGURES[options])


def _ms(call: Callable[[Row], object], row: Row) -> float:
    started = time.perf_counter()
    call(row)
    return (time.perf_counter() - started) * 1000


def _question_of(row: Row) -> Question:
    options: list[dict[str, Any]] = row["options"]
    return Question(row["id"], row["question"], tuple(Option(**each) for each in options))
