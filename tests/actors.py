"""Real actors for tests: ``semif-actor run`` in a process of its own, watched over the bus."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.bus.embedded import EmbeddedServer, embedded_server
from schemas.codec import codec_for
from schemas.health import Heartbeat

READY_TIMEOUT_S = 240.0
EXIT_TIMEOUT_S = 120.0

SMALL_AND_QUICK = {
    "SEMIF_DEVICE": "cpu",
    "SEMIF_HEARTBEAT_S": "0.5",
    "SEMIF_MAX_TOKENS": "512",
    "SEMIF_BATCH_TOKENS_MAX": "2048",
    "SEMIF_SCORER": "reference",
    "SEMIF_LOG_FORMAT": "console",
}
"""Settings that make a start short, and SemIf's own functions, which tests can slow or break."""


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


def environment_of(
    server: EmbeddedServer, model: Path, instance: str, settings: Mapping[str, str] | None
) -> dict[str, str]:
    """Give the environment of an actor: nothing of the tests' own settings, asyncio watched."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")}
    environment |= SMALL_AND_QUICK
    environment |= {
        "SEMIF_NATS_URL": server.url,
        "SEMIF_MODEL": str(model),
        "SEMIF_INSTANCE": instance,
        "PYTHONASYNCIODEBUG": "1",
    }
    return environment | dict(settings or {})


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
    environment = environment_of(server, model, instance, settings)
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


@dataclass(frozen=True, slots=True)
class Served:
    """An actor that is ready, for tests that only ask."""

    url: str
    server: EmbeddedServer
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def serving(
    model: Path,
    folder: Path,
    *,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Run a server and an actor that is ready, for as long as the block lasts.

    For fixtures that many tests share: no event loop runs while it starts.
    """
    log = folder / "actor.log"
    with embedded_server(folder) as server, log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "actor", "run"],
            env=environment_of(server, model, "test", settings),
            stdout=file,
            stderr=file,
        )
        try:
            asyncio.run(_wait_ready(server, process, log))
            yield Served(server.url, server, process, log)
        finally:
            process.kill()
            process.wait()


async def _wait_ready(server: EmbeddedServer, process: subprocess.Popen[bytes], log: Path) -> None:
    client = await nats.connect(server.url)
    state = "never seen"
    try:
        subscription = await client.subscribe("semif.v1.health.test")
        async with asyncio.timeout(READY_TIMEOUT_S):
            while state not in {"ready", "failed"} and process.poll() is None:
                try:
                    message = await subscription.next_msg(timeout=1)
                except nats.errors.TimeoutError:
                    continue
                state = codec_for(None).decode(message.data, Heartbeat).state
        assert state == "ready", log.read_text(encoding="utf-8")
    finally:
        await client.close()


async def ask(
    client: Client,
    request: Any,
    *,
    shared: bool = False,
    headers: dict[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Msg:
    """Send a request (bytes as they are, everything else as JSON) and give the reply."""
    subject = "semif.v1.score_shared" if shared else "semif.v1.score"
    payload = request if isinstance(request, bytes) else json.dumps(request).encode()
    return await client.request(subject, payload, timeout=timeout_s, headers=headers)


def error_of(message: Msg) -> dict[str, Any]:
    """Give the error of a reply, after checking that headers and body agree (ADR-32)."""
    error: dict[str, Any] = json.loads(message.data)["error"]
    assert message.headers is not None
    assert message.headers["Nats-Service-Error-Code"] == str(error["status"])
    assert message.headers["Nats-Service-Error"].isascii()
    return error


def patched(folder: Path, code: str) -> dict[str, str]:
    """Give an environment in which ``code`` runs when the actor's interpreter starts.

    For faults that no request, model or server can cause: the process is real otherwise.
    """
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


SLOW_SCORE = """
import time
import semif_phase1.direct as direct
real = direct.score
def score(model, tokenizer, row, metadata, max_tokens):
    time.sleep(0.1)
    return real(model, tokenizer, row, metadata, max_tokens)
direct.score = score
"""


def subscriptions_in(trace: Path) -> list[str]:
    """Give every SUB that the server has ever read, but those of the test's own client."""
    lines = re.findall(r"<<- \[SUB (\S+)", trace.read_text(encoding="utf-8"))
    return [subject for subject in lines if not subject.startswith(("semif.v1.health.", "_INBOX"))]
