"""The processes that a measurement asks: an actor, or a stand-in for one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from actor.bus.client import BusClient
from actor.cli.bench.records import BenchFailed

__all__ = ["ACTOR", "ECHO", "INSTANT", "running_actor", "running_echo"]

ACTOR = ("-m", "actor", "run")
ECHO = ("-m", "actor.cli.bench.responders", "echo")
INSTANT = ("-m", "actor.cli.bench.responders", "instant")
INSTANCE = "bench"
START_TIMEOUT_S = 600.0
LOG_TAIL_CHARS = 2000


@asynccontextmanager
async def running_actor(
    client: BusClient, environment: Mapping[str, str], log: Path, command: Sequence[str] = ACTOR
) -> AsyncIterator[None]:
    """Run an actor that is ready, until the block ends."""
    environment = dict(environment) | {"SEMIF_INSTANCE": INSTANCE}
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *command), env=environment, stdout=file, stderr=file
        )
    try:
        await _until_ready(client, process, log)
        yield
    finally:
        await _end(process)


@asynccontextmanager
async def running_echo(url: str, subject: str) -> AsyncIterator[None]:
    """Run the bare responder, which says when it listens, until the block ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *ECHO, url, subject), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        async with asyncio.timeout(START_TIMEOUT_S):
            if not await process.stdout.readline():
                raise BenchFailed("the echo responder did not start")
        yield
    finally:
        await _end(process)


async def _until_ready(client: BusClient, process: asyncio.subprocess.Process, log: Path) -> None:
    exited = asyncio.create_task(process.wait())
    watching = asyncio.create_task(_watch(client))
    try:
        await asyncio.wait(
            {exited, watching}, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if watching.done():
            return watching.result()
    finally:
        exited.cancel()
        watching.cancel()
        await asyncio.gather(exited, watching, return_exceptions=True)
    tail = log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARS:]
    raise BenchFailed(f"the actor did not become ready (exit {process.returncode}):\n{tail}")


async def _watch(client: BusClient) -> None:
    async for heartbeat in client.heartbeats(INSTANCE):
        if heartbeat.state == "ready":
            return
        if heartbeat.state == "failed":
            raise BenchFailed(f"the actor failed to start: {heartbeat.reason}")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
