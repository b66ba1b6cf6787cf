"""Jobs under random faults: each must end with exactly one result or one dead letter.

    python tests/harness/exactly_once.py --jobs 2000 --seed 7

Two actors with an engine that needs no model, a server with its streams on disk, and a proxy
between them. At random points of the run an actor or the server is killed (SIGKILL) and started
again, or all connections are cut. Then every job's results and dead letters are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig

from actor.bus.embedded import embedded_server

ACTORS = 2
ACK_WAIT_S = 1.0
DEDUP_S = 600
GIVE_UP_S = 300.0
POLL_S = 0.02
BATCH_S = 0.02
"""The engine's time for a batch of at most four: about 200 jobs a second for each actor."""
HOPELESS_EACH = 10
"""One job in so many cannot be read, and becomes a dead letter."""
FAULTS = ("actor killed", "server killed", "connections cut")
GOOD_JOB = {
    "state": "The parcel never came.",
    "question": "Is the customer happy?",
    "options": [{"id": "yes", "description": "Happy"}, {"id": "no", "description": "Unhappy"}],
}
UNSURE = (nats.errors.Error, nats.js.errors.Error, OSError)
"""What the harness' own requests meet while its server is away."""


@dataclass(slots=True)
class Report:
    """What became of the jobs."""

    jobs: int
    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    ends: dict[str, Counter[str]] = field(default_factory=dict)
    """For each job how many ``results`` and ``dead`` letters there are."""
    deaths: int = 0
    """Actors that ended without being killed."""
    left: int = 0
    seconds: float = 0.0

    def lost(self) -> list[str]:
        """Name the jobs without an end."""
        return [name for name in map(str, range(self.jobs)) if not self.ends.get(name)]

    def doubled(self) -> list[str]:
        """Name the jobs with more than one end."""
        return [name for name, ends in self.ends.items() if ends.total() > 1]

    def wrong(self) -> list[str]:
        """Name the jobs with another end than theirs."""
        return [
            name
            for name, ends in self.ends.items()
            if ("dead" if is_hopeless(int(name)) else "results") not in ends
        ]

    @property
    def good(self) -> bool:
        """True when each job has its one end, and no actor died by itself."""
        return not (self.lost() or self.doubled() or self.wrong() or self.deaths or self.left)

    def __str__(self) -> str:
        totals: Counter[str] = Counter()
        for ends in self.ends.values():
            totals += ends
        faults = ", ".join(f"{count} x {fault}" for fault, count in sorted(self.faults.items()))
        return (
            f"exactly once (seed {self.seed}): {self.jobs} jobs, {totals['results']} results, "
            f"{totals['dead']} dead letters, {len(self.lost())} lost, {len(self.doubled())} "
            f"doubled, {len(self.wrong())} wrong, {self.left} left, {self.deaths} actors that "
            f"ended by themselves; {faults}; {self.seconds:.1f} s"
        )


def is_hopeless(number: int) -> bool:
    """Tell which jobs cannot be read."""
    return number % HOPELESS_EACH == HOPELESS_EACH - 1


class Proxy:
    """Carries connections to the server, and cuts them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self) -> asyncio.Server:
        """Listen on a port of the system's choice."""
        return await asyncio.start_server(self._carry, "127.0.0.1", 0)

    def cut(self) -> None:
        """Break every connection, with what is on the way."""
        for writer in self._open:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, to_writer}
        self._open |= pair
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, to_writer))
                group.create_task(_pump(to_reader, writer))
        finally:
            self._open -= pair
            for each in pair:
                each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class Field:
    """The server, the proxy and the actors."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._server = stack.enter_context(embedded_server(folder, jetstream=True))
        self.url = self._server.url
        self.port = int(self.url.rpartition(":")[2])
        self.proxy = Proxy(self.port)
        self._proxy_port = 0
        self._actors: list[asyncio.subprocess.Process] = []
        self.deaths = 0

    async def open(self) -> asyncio.Server:
        """Start the proxy and the actors behind it."""
        listening = await self.proxy.serve()
        self._proxy_port = listening.sockets[0].getsockname()[1]
        self._actors = [await self._start_actor(number) for number in range(ACTORS)]
        return listening

    async def kill_actor(self, number: int) -> None:
        """Kill one, and start it again."""
        process = self._actors[number]
        if process.returncode is None:
            process.kill()
        else:
            self.deaths += 1
        await process.wait()
        self._actors[number] = await self._start_actor(number)

    async def kill_server(self) -> None:
        """Kill the server, and start it again on its port and its files."""
        self._server.process.kill()
        self._server.process.wait()
        starting = embedded_server(self._folder, jetstream=True, port=self.port)
        self._server = await asyncio.to_thread(self._stack.enter_context, starting)

    async def close(self) -> None:
        """End the actors as an operator does."""
        for process in self._actors:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            else:
                self.deaths += 1
        for process in self._actors:
            await process.wait()

    async def _start_actor(self, number: int) -> asyncio.subprocess.Process:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")} | {
            "SEMIF_NATS_URL": f"nats://127.0.0.1:{self._proxy_port}",
            "SEMIF_INSTANCE": f"actor-{number}-{time.monotonic_ns()}",
            "SEMIF_JOBS": "true",
            "SEMIF_ACK_WAIT_S": str(ACK_WAIT_S),
            "SEMIF_DEDUP_S": str(DEDUP_S),
            "SEMIF_BATCH_ROWS_MAX": "4",
            "SEMIF_QUEUE_JOBS_MAX": "32",
            "SEMIF_BUS_LOST_S": "6",
            "SEMIF_DRAIN_S": "5",
        }
        with (self._folder / f"actor-{number}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "actor.cli.bench.responders", "instant", str(BATCH_S)),
                env=environment,
                stdout=log,
                stderr=log,
            )


async def run(*, jobs: int, seed: int, faults: int, folder: Path) -> Report:
    """Put the jobs through the faults, and count."""
    started_s = time.monotonic()
    report = Report(jobs, seed)
    with ExitStack() as stack:
        field_ = Field(folder, stack)
        client = await nats.connect(
            field_.url, reconnect_time_wait=0.1, max_reconnect_attempts=-1, error_cb=_quiet
        )
        await _make_streams(client)
        await _publish(client, jobs)
        listening = await field_.open()
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await _disturb(field_, client, report, faults)
        except TimeoutError:
            report.left = -1
        finally:
            await field_.close()
            listening.close()
        report.deaths = field_.deaths
        await _count(client, report)
        await client.close()
    report.seconds = time.monotonic() - started_s
    return report


async def _quiet(_error: Exception) -> None:
    """Lose no word over a server that the harness itself has killed."""


async def _make_streams(client: Client) -> None:
    js = client.jetstream()
    for name, kind, retention in (
        ("SEMIF_JOBS", "jobs", RetentionPolicy.WORK_QUEUE),
        ("SEMIF_RESULTS", "results", RetentionPolicy.LIMITS),
        ("SEMIF_DEAD", "dead", RetentionPolicy.LIMITS),
    ):
        await js.add_stream(
            StreamConfig(
                name=name,
                subjects=[f"semif.v1.{kind}.>"],
                retention=retention,
                duplicate_window=DEDUP_S,
            )
        )
    await js.add_consumer(
        "SEMIF_JOBS",
        ConsumerConfig(
            durable_name="semif",
            ack_wait=ACK_WAIT_S,
            max_deliver=-1,
            max_ack_pending=1000,
            filter_subject="semif.v1.jobs.>",
        ),
    )


async def _publish(client: Client, jobs: int) -> None:
    js, good = client.jetstream(), json.dumps(GOOD_JOB).encode()
    for number in range(jobs):
        body = b"{" if is_hopeless(number) else good
        await js.publish(f"semif.v1.jobs.{number}", body)


async def _disturb(field_: Field, client: Client, report: Report, faults: int) -> None:
    """Let a fault happen each time that so many jobs are done, until none is left."""
    chance = random.Random(report.seed)  # noqa: S311 - to be repeated
    points = sorted(chance.sample(range(1, report.jobs), faults), reverse=True)
    # Each kind at least once, in whatever order.
    kinds = [FAULTS[n % len(FAULTS)] for n in range(faults)]
    chance.shuffle(kinds)
    async for left in _left(client):
        while points and report.jobs - left >= points[-1]:
            points.pop()
            kind = kinds.pop()
            report.faults[kind] += 1
            if kind == "actor killed":
                await field_.kill_actor(chance.randrange(ACTORS))
            elif kind == "server killed":
                await field_.kill_server()
            else:
                field_.proxy.cut()


async def _left(client: Client) -> AsyncIterator[int]:
    """Give how many jobs are left, again and again, until none is."""
    js = client.jetstream(timeout=0.5)
    while True:
        with suppress(*UNSURE):
            left = (await js.stream_info("SEMIF_JOBS")).state.messages
            yield left
            if not left:
                return
        await asyncio.sleep(POLL_S)


async def _count(client: Client, report: Report) -> None:
    js = client.jetstream()
    if report.left:
        report.left = (await js.stream_info("SEMIF_JOBS")).state.messages
    for kind, stream in (("results", "SEMIF_RESULTS"), ("dead", "SEMIF_DEAD")):
        stored = (await js.stream_info(stream)).state.messages
        reading = await js.subscribe(f"semif.v1.{kind}.>", stream=stream, ordered_consumer=True)
        for _ in range(stored):
            message = await reading.next_msg(timeout=10)
            name = message.subject.rpartition(".")[2]
            report.ends.setdefault(name, Counter())[kind] += 1
        await reading.unsubscribe()


def main() -> int:
    """Run once and print the counts; 0 when every job has its one end."""
    parser = argparse.ArgumentParser(description="exactly once, under random faults")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))  # noqa: S311
    parser.add_argument("--faults", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(
            run(jobs=options.jobs, seed=options.seed, faults=options.faults, folder=Path(folder))
        )
    print(report)  # noqa: T201 - what it is for
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
