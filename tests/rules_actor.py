"""An actor with a rule file, the streams that it needs, and what came of its events, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import nats
from in_process import QuickEngine, actor_in_process
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg, StreamConfig

from actor.bus.client import open_client
from actor.bus.embedded import EmbeddedServer
from actor.bus.objects.api import asking_as_client
from actor.bus.objects.apply import apply
from actor.bus.objects.wanted import wanted_objects
from actor.engine.base import Engine
from actor.rules.rulefile import load
from actor.settings import Settings
from schemas.health import Heartbeat

WAIT_S = 20.0


@dataclass(slots=True)
class RulesActor:
    """A client beside a running actor."""

    client: Client
    js: JetStreamContext
    settings: Settings
    beats: list[Heartbeat]

    def outcomes(self) -> dict[str, dict[str, int]]:
        """Give the newest heartbeat's counts, by rule."""
        pipeline = self.beats[-1].pipeline
        assert pipeline is not None
        return {name: source.outcomes for name, source in pipeline.sources.items()}

    async def until_settled(self, events: int) -> None:
        """Wait for a heartbeat with so many outcomes; the last of the dead letters may follow."""

        def settled() -> bool:
            counts = [sum(codes.values()) for codes in self.outcomes().values()]
            return sum(counts) >= events

        await until(settled)

    async def dead(self, count: int) -> list[RawStreamMsg]:
        """Give the dead letters, once there are so many."""
        return await self.stored(self.settings.dead_stream, count)

    async def stored(self, stream: str, count: int) -> list[RawStreamMsg]:
        """Give the messages of a stream, once there are so many."""
        async with asyncio.timeout(WAIT_S):
            state = (await self.js.stream_info(stream)).state
            while state.messages < count:
                await asyncio.sleep(0.02)
                state = (await self.js.stream_info(stream)).state
        numbers = range(max(state.first_seq, 1), state.last_seq + 1)
        return [await self.js.get_msg(stream, number) for number in numbers]


async def until(found: Callable[[], bool]) -> None:
    """Wait until ``found`` is true: heartbeats come ten times a second."""
    async with asyncio.timeout(WAIT_S):
        while not found():  # noqa: ASYNC110 - what it looks at has no event
            await asyncio.sleep(0.02)


async def make_objects(settings: Settings) -> None:
    """Make what ``semif-actor stream apply`` would."""
    assert settings.rules is not None
    wanted = wanted_objects(settings, load(settings.rules, prefix=settings.subject_prefix))
    async with open_client(settings, "test") as client:
        looked = await apply(asking_as_client(client), wanted, replicas=1, tell=lambda _text: None)
    assert [str(each) for found in looked for each in found.differences] == []


@asynccontextmanager
async def rules_actor(
    server: EmbeddedServer,
    rules: Path,
    engine: Engine | None = None,
    *,
    streams: Mapping[str, Sequence[str]] | None = None,
    **changes: Any,
) -> AsyncIterator[RulesActor]:
    """Run an actor with a rule file, until the block ends; ``streams`` are the users' own."""
    base: dict[str, Any] = {"instance": "test", "heartbeat_s": 0.1} | changes
    settings = Settings(nats_url=server.url, rules=rules, **base)
    client = await nats.connect(server.url)
    try:
        js = client.jetstream()
        for name, subjects in (streams or {}).items():
            await js.add_stream(StreamConfig(name=name, subjects=list(subjects)))
        await make_objects(settings)
        async with actor_in_process(settings, client, engine or QuickEngine()) as beats:
            yield RulesActor(client, js, settings, beats)
    finally:
        await client.close()


async def publish_raw(url: str, subject: str, headers: bytes, payload: bytes) -> None:
    """Publish headers that no client would send."""
    address = urlparse(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
    sizes = f"{len(headers)} {len(headers) + len(payload)}"
    writer.write(f"HPUB {subject} {sizes}\r\n".encode() + headers + payload + b"\r\nPING\r\n")
    async with asyncio.timeout(WAIT_S):
        while await reader.readline() != b"PONG\r\n":
            pass
    writer.close()
    await writer.wait_closed()
