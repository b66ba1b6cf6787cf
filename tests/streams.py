"""The streams and the consumer that jobs need, and an actor beside them, for tests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import nats
from actors import decision
from in_process import QuickEngine, actor_in_process
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, RawStreamMsg, RetentionPolicy, StreamConfig

from actor.bus.asking import Asker
from actor.bus.connection import Connection
from actor.bus.dead_letters import DeadLetters
from actor.bus.delivery import Delivery, Verdict
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.bus.pull_worker import PullWorker, Source
from actor.engine.base import Engine, Outcome, Prepared
from actor.settings import Settings
from schemas.errors import SemifError
from schemas.health import Heartbeat, SourceHealth

WAIT_S = 20.0
SETTINGS = Settings(
    instance="test",
    jobs=True,
    ack_wait_s=1.0,
    timeout_ms_default=10_000,
    heartbeat_s=0.1,
    bus_lost_s=3.0,
)


@dataclass(slots=True)
class Streams:
    """A client of the server, and what it may see of the streams."""

    settings: Settings
    client: Client
    js: JetStreamContext
    beats: list[Heartbeat]

    async def make_consumer(self, **changes: Any) -> None:
        """Make the consumer of the jobs."""
        config = {
            "durable_name": self.settings.jobs_durable,
            "ack_wait": self.settings.ack_wait_s,
            "max_deliver": -1,
            "max_ack_pending": 1000,
            "filter_subject": "semif.v1.jobs.>",
        } | changes
        await self.js.add_consumer(self.settings.jobs_stream, ConsumerConfig(**config))

    async def job(
        self,
        rest: str,
        payload: Any = None,
        headers: dict[str, str] | None = None,
    ) -> int:
        """Put a job into its stream (bytes as they are, else as JSON); gives its sequence."""
        body = decision(state=rest) if payload is None else payload
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        ack = await self.js.publish(f"semif.v1.jobs.{rest}", body, headers=headers)
        return int(ack.seq)

    async def stored(self, stream: str) -> list[RawStreamMsg]:
        """Give all messages of a stream."""
        state = (await self.js.stream_info(stream)).state
        sequences = range(max(state.first_seq, 1), state.last_seq + 1)
        return [await self.js.get_msg(stream, sequence) for sequence in sequences]

    async def results(self) -> list[RawStreamMsg]:
        """Give all results."""
        return await self.stored(self.settings.results_stream)

    async def dead(self) -> list[RawStreamMsg]:
        """Give all dead letters."""
        return await self.stored(self.settings.dead_stream)

    async def jobs_left(self) -> int:
        """Give how many jobs are not settled."""
        return int((await self.js.stream_info(self.settings.jobs_stream)).state.messages)

    async def until_settled(self) -> None:
        """Wait until no job is left."""
        await self.until(self._settled)

    async def _settled(self) -> bool:
        return await self.jobs_left() == 0

    async def until(self, found: Any) -> None:
        """Wait until ``found`` is true; the server has no event for it."""
        async with asyncio.timeout(WAIT_S):
            while not await found():  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.02)

    @property
    def health(self) -> SourceHealth:
        """Give the newest heartbeat's word on the jobs."""
        pipeline = self.beats[-1].pipeline
        assert pipeline is not None
        return pipeline.sources["jobs"]

    async def until_health(self, good: Any) -> None:
        """Wait for a heartbeat whose word on the jobs is ``good``."""

        async def found() -> bool:
            pipeline = self.beats[-1].pipeline
            return pipeline is not None and bool(good(pipeline.sources["jobs"]))

        await self.until(found)


@contextmanager
def jetstream_server(folder: Path, port: int = -1) -> Iterator[EmbeddedServer]:
    """Run a server with JetStream, its store in ``folder``."""
    folder.mkdir(exist_ok=True)
    with embedded_server(folder, port=port, jetstream=True) as server:
        yield server


async def make_streams(client: Client, settings: Settings) -> Streams:
    """Make the three streams and the consumer."""
    made = Streams(settings, client, client.jetstream(), [])
    for name, kind, retention in (
        (settings.jobs_stream, "jobs", RetentionPolicy.WORK_QUEUE),
        (settings.results_stream, "results", RetentionPolicy.LIMITS),
        (settings.dead_stream, "dead", RetentionPolicy.LIMITS),
    ):
        await made.js.add_stream(
            StreamConfig(
                name=name,
                subjects=[f"semif.v1.{kind}.>"],
                retention=retention,
                duplicate_window=settings.dedup_s,
            )
        )
    await made.make_consumer()
    return made


@asynccontextmanager
async def working(
    server: EmbeddedServer, engine: Engine | None = None, **changes: Any
) -> AsyncIterator[Streams]:
    """Run an actor that takes jobs, until the block ends."""
    settings = msgspec.structs.replace(SETTINGS, nats_url=server.url, **changes)
    client = await nats.connect(server.url, reconnect_time_wait=0.1)
    try:
        streams = await make_streams(client, settings)
        async with actor_in_process(settings, client, engine or QuickEngine()) as beats:
            streams.beats = beats
            yield streams
    finally:
        await client.close()


class GatedEngine(QuickEngine):
    """Waits at a gate before each batch, and refuses states as often as a test says."""

    def __init__(self, refusals: dict[str, list[SemifError]] | None = None) -> None:
        super().__init__()
        self.refusals = refusals or {}
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.scored: list[str] = []

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """Score, or refuse, each request once the gate is open."""
        self.entered.set()
        self.gate.wait()
        return [self._outcome(prepared, rows=len(batch)) for prepared in batch]

    def _outcome(self, prepared: Prepared, *, rows: int) -> Outcome:
        state = str(prepared.work.state)
        self.scored.append(state)
        if refusals := self.refusals.get(state):
            return refusals.pop(0)
        return self._each(prepared, rows=rows)


async def until_entered(engine: GatedEngine) -> None:
    """Wait until a batch stands at the gate."""
    await asyncio.to_thread(engine.entered.wait, WAIT_S)


@dataclass(slots=True)
class Pulling:
    """A pull worker by itself, around what a test makes of deliveries."""

    worker: PullWorker
    streams: Streams
    connection: Connection


@asynccontextmanager
async def pulling(
    server: EmbeddedServer,
    process: Callable[[Delivery], Awaitable[Verdict]],
    *,
    streams: Streams | None = None,
    room: int = 100,
    **changes: Any,
) -> AsyncIterator[Pulling]:
    """Run a pull worker until the block ends, then stop it and give back what it holds."""
    client = await nats.connect(server.url)
    settings = msgspec.structs.replace(SETTINGS, nats_url=server.url)
    streams = streams or await make_streams(client, settings)
    source = Source(
        name="test",
        stream="SEMIF_JOBS",
        durable="semif",
        ack_wait_s=1,
        deliveries_max=3,
        held_max=9,
    )
    connection = Connection(settings)
    await connection.open()
    asker = Asker(connection)
    await asker.open()
    worker = PullWorker(
        connection,
        asker,
        msgspec.structs.replace(source, **changes),
        room=lambda: room,
        process=process,
        dead_letters=DeadLetters(settings, connection, asker),
        rest_of=lambda delivery: delivery.subject.rpartition(".")[2],
    )
    await worker.open()
    await connection.confirm()
    running = asyncio.create_task(worker.run())
    try:
        yield Pulling(worker, streams, connection)
    finally:
        await worker.stop()
        await worker.abandon()
        async with asyncio.timeout(WAIT_S):
            await running
        await asker.close()
        await connection.close()
        await client.close()
