"""Real actors for tests: ``semif-actor run`` in a process of its own, watched over the bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.bus.embedded import EmbeddedServer
from schemas.codec import codec_for
from schemas.health import Heartbeat

READY_TIMEOUT_S = 90.0
EXIT_TIMEOUT_S = 60.0

SMALL_AND_QUICK = {
    "SEMIF_DEVICE": "cpu",
    "SEMIF_HEARTBEAT_S": "0.5",
    "SEMIF_MAX_TOKENS": "512",
    "SEMIF_BATCH_TOKENS_MAX": "8192",
    "SEMIF_LOG_FORMAT": "console",
}
"""Settings that make a start short; the demo and test_start use the defaults."""


@dataclass(slots=True)
class Actor:
    """A running actor process and every heartbeat it has sent."""

    instance: str
    process: asyncio.subprocess.Process
    client: Client
    log: Path
    heartbeats: list[Heartbeat] = field(default_factory=list)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, state: str) -> Heartbeat:
        """Wait for a heartbeat of ``state``; a process that ends before fails with its log."""

        def found() -> Heartbeat | None:
            return next((beat for beat in self.heartbeats if beat.state == state), None)

        exited = asyncio.create_task(self.process.wait())
        try:
            async with asyncio.timeout(READY_TIMEOUT_S), self.news:
                while (beat := found()) is None:
                    news = asyncio.create_task(self.news.wait())
                    await asyncio.wait({news, exited}, return_when=asyncio.FIRST_COMPLETED)
                    if not news.done():
                        news.cancel()
                        await asyncio.gather(news, return_exceptions=True)
                        beat = found()
                        assert beat, f"exit {self.process.returncode}:\n{self.log_text()}"
                        return beat
                return beat
        finally:
            exited.cancel()

    async def exit_code(self) -> int:
        """Wait for the process to end."""
        async with asyncio.timeout(EXIT_TIMEOUT_S):
            return await self.process.wait()

    async def stop(self) -> int:
        """Send SIGTERM and wait for the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.exit_code()

    def log_text(self) -> str:
        """Give what the process wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@asynccontextmanager
async def run_actor(
    server: EmbeddedServer,
    model: Path,
    folder: Path,
    *,
    settings: Mapping[str, str] | None = None,
    instance: str = "test",
) -> AsyncIterator[Actor]:
    """Start an actor; it is killed at the end of the block if it still runs then.

    ``settings`` are environment variables on top of :data:`SMALL_AND_QUICK`.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")}
    environment |= SMALL_AND_QUICK
    environment |= {
        "SEMIF_NATS_URL": server.url,
        "SEMIF_MODEL": str(model),
        "SEMIF_INSTANCE": instance,
        "PYTHONASYNCIODEBUG": "1",
    }
    environment |= settings or {}
    client = await nats.connect(server.url)
    log = folder / f"{instance}.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "actor", "run"), env=environment, stdout=file, stderr=file
        )
    actor = Actor(instance, process, client, log)

    async def on_heartbeat(message: Msg) -> None:
        actor.heartbeats.append(codec_for(None).decode(message.data, Heartbeat))
        async with actor.news:
            actor.news.notify_all()

    await client.subscribe(f"semif.v1.health.{instance}", cb=on_heartbeat)
    try:
        yield actor
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await client.close()


def connections_of(server: EmbeddedServer, instance: str) -> list[dict[str, Any]]:
    """Give the server's own view of an actor's connections, with their subscriptions."""
    url = f"{server.monitor_url}/connz?subs=1"
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - loopback
        connections: list[dict[str, Any]] = json.load(answer)["connections"]
    return [each for each in connections if each.get("name") == f"semif-actor {instance}"]


def decision(state: Any = "The parcel never came.", **changes: Any) -> dict[str, Any]:
    """Give a good ``score`` request."""
    return {
        "state": state,
        "question": "Is the customer happy?",
        "options": [
            {"id": "yes", "description": "Happy"},
            {"id": "no", "description": "Unhappy"},
        ],
    } | changes
