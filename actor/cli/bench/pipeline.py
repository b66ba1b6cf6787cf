"""Decisions behind a stream by a rule, against the same decisions asked by requests.

And, with an engine that returns at once, what the rule itself costs: against a loop of nats-py that
pulls, publishes and acknowledges, and decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from actor.bus.objects.api import asking_as_client
from actor.bus.objects.apply import apply
from actor.bus.objects.wanted import wanted_objects
from actor.cli.bench.baseline import SETTLE_S
from actor.cli.bench.context import Bench
from actor.cli.bench.processes import INSTANT, running_actor, running_pull
from actor.cli.bench.records import BenchFailed, Figure, Record, Round, compared, observed
from actor.cli.bench.scoring import in_turns
from actor.cli.bench.workload import (
    QUESTIONS,
    Row,
    score_body,
    shared_body,
    short_rows,
    state_of,
    state_rows,
)
from actor.rules.rulefile import parse

__all__ = ["measure", "measure_instant", "rules_text"]

NAME = "pipeline"
SHORT_COUNT = 64
SHARED_WORDS = 200
EVENTS = 20_000
"""Of the instant engine. The first and the last tenth do not count: it starts, it runs dry."""
WITHIN_S = 300.0
LOOK_S = 0.02
RATE = Figure(at_least=0.9)
SHARED = Figure(at_most=1.1)
EVENTS_PER_S = Figure(at_least=3000)
BARE = Figure(at_least=0.6)

AT_ONCE = 256
STREAM = "BENCH"
BARE_DURABLE = "bare"
ONE, MANY = "one", "many"
"""Rules, and the last tokens of the subjects that they read and write."""


async def measure(bench: Bench) -> list[Record]:
    """Measure a real model, then the instant engine."""
    return await _measure_model(bench) + await measure_instant(bench)


async def _measure_model(bench: Bench) -> list[Record]:
    """Compare rules with requests: many events, and many questions about one."""
    rates: list[Round] = []
    shared_ms: list[Round] = []
    bench.tell("pipeline, the actor starts")
    async with _events(bench) as events, events.actor():
        for number in range(bench.rounds):
            bench.tell(f"pipeline, round {number + 1} of {bench.rounds}")
            ours, theirs = await _short(bench, events, number)
            rates.append((SHORT_COUNT / ours, SHORT_COUNT / theirs))
            ours, theirs = await _shared(bench, events, number)
            shared_ms.append((ours * 1000, theirs * 1000))
    short = f"{SHORT_COUNT} short events of a stream"
    shared = f"{len(QUESTIONS)} questions about one event, {SHARED_WORDS} words"
    note = "baseline: the same decisions by request/reply"
    return [
        compared(NAME, short, "events/s", rates, by="share", figure=RATE, note=note),
        compared(NAME, shared, "ms", shared_ms, by="share", figure=SHARED, note=note),
    ]


async def measure_instant(bench: Bench, *, count: int = EVENTS) -> list[Record]:
    """Measure events a second of an engine that returns at once, in mode ``annotate``."""
    rounds: list[Round] = []
    together: list[Round] = []
    async with _events(bench) as events:
        for number in range(bench.rounds):
            bench.tell(f"pipeline, instant engine, round {number + 1} of {bench.rounds}")

            async def ours() -> float:
                return await events.rate(f"semif-{ONE}", events.actor(*INSTANT), count)

            async def baseline(at_once: int = 1) -> float:
                subject = _written("bare")
                pull = running_pull(bench.url, STREAM, BARE_DURABLE, subject, at_once=at_once)
                return await events.rate(BARE_DURABLE, pull, count)

            rounds.append(await in_turns(number, ours, baseline))
            together.append((rounds[-1][0], await baseline(AT_ONCE)))
    what = "events of a stream, instant engine, annotate"
    note = "baseline: a loop of nats-py that fetches, publishes as many headers and acknowledges"
    share = compared(NAME, what, "events/s", rounds, by="share", figure=BARE, note=note)
    note = f"baseline: the same with {AT_ONCE} events at once"
    return [
        observed(NAME, what, "events/s", share.ours, figure=EVENTS_PER_S),
        share,
        compared(NAME, what, "events/s", together, by="share", note=note),
    ]


async def _short(bench: Bench, events: _Events, number: int) -> Round:
    """Give the seconds for different short states, by events and by requests."""
    mine, theirs = (short_rows(SHORT_COUNT, _seed(number, side)) for side in range(2))

    async def ours() -> float:
        return await events.seconds(ONE, [row["state"].encode() for row in mine])

    async def baseline() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(bench.ask(score_body(row), shared=False) for row in theirs))
        seconds = time.perf_counter() - started
        await asyncio.sleep(SETTLE_S)
        return seconds

    return await in_turns(number, ours, baseline)


async def _shared(bench: Bench, events: _Events, number: int) -> Round:
    """Give the seconds for many questions about one state that nobody has seen before."""
    mine, theirs = (state_of(SHARED_WORDS, _seed(number, side)) for side in range(2))

    async def ours() -> float:
        return await events.seconds(MANY, [mine.encode()])

    async def baseline() -> float:
        seconds = await bench.ask(shared_body(state_rows(theirs)), shared=True)
        await asyncio.sleep(SETTLE_S)
        return seconds

    return await in_turns(number, ours, baseline)


class _Events:
    """The stream, and what its readers make of it."""

    def __init__(self, bench: Bench, client: Client, environment: Mapping[str, str]) -> None:
        self._bench = bench
        self._client = client
        self._js: JetStreamContext = client.jetstream()
        self._environment = environment
        self._waiting = 0
        self._all_there = asyncio.Event()

    def actor(self, *command: str) -> AbstractAsyncContextManager[None]:
        """Run an actor with the rules; the real one without a command."""
        log = self._bench.folder / "rules.log"
        if command:
            return running_actor(self._bench.client, self._environment, log, command)
        return running_actor(self._bench.client, self._environment, log)

    async def seconds(self, rule: str, payloads: Sequence[bytes]) -> float:
        """Give the seconds from the first event to the last decision."""
        self._waiting = len(payloads)
        self._all_there.clear()
        started = time.perf_counter()
        for payload in payloads:
            await self._client.publish(_read(rule), payload)
        async with asyncio.timeout(WITHIN_S):
            await self._all_there.wait()
        seconds = time.perf_counter() - started
        await asyncio.sleep(SETTLE_S)
        return seconds

    async def rate(
        self, durable: str, reader: AbstractAsyncContextManager[None], count: int
    ) -> float:
        """Fill the stream, start its reader, and give the events acknowledged in a second.

        Between a tenth of them and nine tenths. The server is asked for the count: one more
        client to which everything is sent would have a part in what is measured.
        """
        await self._js.purge_stream(STREAM)
        rule = ONE if durable != BARE_DURABLE else "bare"
        [row] = short_rows(1, 0)
        for number in range(count):
            await self._client.publish(_read(rule), f"{number} {row['state']}".encode())
        await self._client.flush()
        await self._client.flush()  # the first one overtakes what was published
        marks: list[tuple[float, int]] = []
        async with reader, asyncio.timeout(WITHIN_S):
            while not marks or marks[-1][1] < count * 0.9:
                done = count - await self._left(durable)
                if done >= count * 0.1:
                    marks.append((time.perf_counter(), done))
                await asyncio.sleep(LOOK_S)
        (start_s, first), (end_s, last) = marks[0], marks[-1]
        if last == first:
            raise BenchFailed(f"{count} events are too few to measure")
        return (last - first) / (end_s - start_s)

    async def on_decision(self, _message: Msg) -> None:
        """Count a decision."""
        self._waiting -= 1
        if self._waiting == 0:
            self._all_there.set()

    async def _left(self, durable: str) -> int:
        info = await self._js.consumer_info(STREAM, durable)
        return int(info.num_pending or 0) + int(info.num_ack_pending or 0)


@asynccontextmanager
async def _events(bench: Bench) -> AsyncIterator[_Events]:
    """Make the rule file, and the objects that it and the bare loop need."""
    file = bench.folder / "rules.toml"
    file.write_text(rules_text(), encoding="utf-8")
    found = msgspec.structs.replace(bench.settings, rules=file)
    client = await nats.connect(bench.url, pending_size=64 * 1024 * 1024)
    try:
        js = client.jetstream()
        await js.add_stream(StreamConfig(name=STREAM, subjects=[_read("*")]))
        config = ConsumerConfig(
            durable_name=BARE_DURABLE,
            filter_subject=_read("bare"),
            ack_policy=AckPolicy.EXPLICIT,
            max_ack_pending=EVENTS,
        )
        await js.add_consumer(STREAM, config)
        wanted = wanted_objects(found, parse(rules_text(), "bench", prefix=found.subject_prefix))
        await apply(asking_as_client(bench.client), wanted, replicas=1, tell=bench.tell)
        events = _Events(bench, client, {**bench.environment, "SEMIF_RULES": str(file)})
        await client.subscribe(_written(f"{ONE}"), cb=events.on_decision)
        await client.subscribe(_written(f"{MANY}"), cb=events.on_decision)
        yield events
        await js.delete_stream(STREAM)
    finally:
        await client.close()


def rules_text() -> str:
    """Give a rule with the question of the short states, and one with all of the others."""
    [short] = short_rows(1, 0)
    return _rule(ONE, [short]) + _rule(MANY, state_rows("x"))


def _rule(name: str, rows: Sequence[Row]) -> str:
    source = f'{{ stream = "{STREAM}", subject = "{_read(name)}" }}'
    head = f'[[rules]]\nname = "{name}"\nsource = {source}\nformat = "text"\n'
    return head + "".join(map(_question, rows)) + f'[[rules.sinks]]\nsubject = "{_written(name)}"\n'


def _question(row: Row) -> str:
    options = ", ".join(
        f'{{ id = "{option["id"]}", description = "{option["description"]}" }}'
        for option in row["options"]
    )
    head = f'[[rules.questions]]\nid = "{row["id"]}"\nquestion = "{row["question"]}"\n'
    return f"{head}options = [{options}]\n"


def _read(rule: str) -> str:
    return f"bench.read.{rule}"


def _written(rule: str) -> str:
    return f"bench.written.{rule}"


def _seed(number: int, side: int) -> int:
    """Give states of their own to each round and side: none may be known to the model's cache."""
    return 1_000_000 * (2 * number + side + 1)
