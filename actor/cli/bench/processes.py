"""The processes that a measurement asks: an actor, or a stand-in for one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from actor.bus.client import BusClient
from actor.cli.actor_process import (
    ACTOR,
    NotReady,
    actor_process,
    end_process,
    until_ready,
)
from actor.cli.bench.records import BenchFailed

__all__ = ["ECHO", "INSTANT", "running_actor", "running_echo", "running_pull"]

ECHO = ("-m", "actor.cli.bench.responders", "echo")
PULL = ("-m", "actor.cli.bench.responders", "pull")
INSTANT = ("-m", "actor.cli.bench.responders", "instant")
INSTANCE = "bench"
START_TIMEOUT_S = 600.0


@asynccontextmanager
async def running_actor(
    client: BusClient, environment: Mapping[str, str], log: Path, command: Sequence[str] = ACTOR
) -> AsyncIterator[None]:
    """Run an actor that is ready, until the block ends."""
    environment = dict(environment) | {"SEMIF_INSTANCE": INSTANCE}
    async with actor_process(environment, log, command) as process:
        try:
            await until_ready(_watch(client), process, log, within_s=START_TIMEOUT_S)
        except NotReady as error:
            raise BenchFailed(str(error)) from None
        yield


def running_echo(url: str, subject: str) -> AbstractAsyncContextManager[None]:
    """Run the bare responder until the block ends."""
    return _running((*ECHO, url, subject))


def running_pull(
    url: str, stream: str, durable: str, subject: str, *, at_once: int
) -> AbstractAsyncContextManager[None]:
    """Run the bare reader of a stream until the block ends."""
    return _running((*PULL, url, stream, durable, subject, str(at_once)))


@asynccontextmanager
async def _running(command: Sequence[str]) -> AsyncIterator[None]:
    """Run a program of nats-py's own, which says when it listens, until the block ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        async with asyncio.timeout(START_TIMEOUT_S):
            if not await process.stdout.readline():
                raise BenchFailed(f"{command[-1]}: the baseline did not start")
        yield
    finally:
        await end_process(process)


async def _watch(client: BusClient) -> None:
    async for heartbeat in client.heartbeats(INSTANCE):
        if heartbeat.state == "ready":
            return
        if heartbeat.state == "failed":
            raise BenchFailed(f"the actor failed to start: {heartbeat.reason}")
