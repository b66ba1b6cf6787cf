"""A whole actor under load while its server stops, stands still, or takes its rights back.

The two durations are those of a quick test; the soak runs the same with more patience.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import nats
import nats.errors
import pytest
from actors import decision
from in_process import actor_in_process
from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.cli.bench.responders import InstantEngine
from actor.service import Exit, serve
from actor.settings import Settings

TIMEOUT_S = 30.0
OUTAGE_S = float(os.environ.get("SOAK_OUTAGE_S", "0.3"))
"""Seconds without a server; ``make soak`` gives more."""
PAUSE_S = float(os.environ.get("SOAK_PAUSE_S", "0.5"))
"""Seconds of a server under SIGSTOP; ``make soak`` gives more."""
REPLY_WITHIN_S = PAUSE_S + 1.0
BODY = json.dumps(decision()).encode()


class Load:
    """Callers that ask without a pause, and what became of each request."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.outcomes: Counter[str] = Counter()
        self.replies: Counter[str] = Counter()
        self.stop = asyncio.Event()

    async def start(self) -> None:
        """Watch every reply on the bus, and begin to ask."""
        await self.client.subscribe("_INBOX.>", cb=self.on_reply)
        self.callers = [asyncio.create_task(self.call()) for _ in range(8)]

    async def on_reply(self, message: Msg) -> None:
        """Count what comes to an inbox; an empty one is the server's own no-responders."""
        if message.data:
            self.replies[message.subject] += 1

    async def call(self) -> None:
        """Ask until told to stop."""
        while not self.stop.is_set():
            try:
                reply = await self.client.request("semif.v1.score", BODY, timeout=REPLY_WITHIN_S)
            except nats.errors.Error as error:
                self.outcomes[type(error).__name__] += 1
                await asyncio.sleep(0.01)
            else:
                self.outcomes["error" if b'"error"' in reply.data else "answered"] += 1

    async def answered(self, count: int) -> None:
        """Wait for so many answers more."""
        goal = self.outcomes["answered"] + count
        async with asyncio.timeout(TIMEOUT_S):
            while self.outcomes["answered"] < goal:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Stop asking; no inbox may have seen two replies."""
        self.stop.set()
        await asyncio.gather(*self.callers)
        assert set(self.replies.values()) <= {1}


async def test_a_server_that_comes_back_under_load_serves_again(tmp_path: Path) -> None:
    """Requests of the outage fail at their callers; afterwards all are answered, each once."""
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with embedded_server(tmp_path / "1") as first:
        url = first.url
        client = await nats.connect(url, reconnect_time_wait=0.1, max_reconnect_attempts=-1)
        settings = Settings(nats_url=url, instance="unit", bus_lost_s=20 * OUTAGE_S)
        context = actor_in_process(settings, client)
        beats = await context.__aenter__()
        load = Load(client)
        await load.start()
        await load.answered(50)
        first.process.kill()
        first.process.wait()
    await asyncio.sleep(OUTAGE_S)
    with embedded_server(tmp_path / "2", port=int(url.rsplit(":", 1)[1])):
        await load.answered(50)
        await load.end()
        await context.__aexit__(None, None, None)
        await client.close()

    assert beats[-1].bus.reconnects == 1
    assert set(load.outcomes) <= {"answered", "TimeoutError", "NoRespondersError", *BROKEN}


BROKEN = {"OutboundBufferLimitError", "ConnectionReconnectingError"}


async def test_a_server_that_stands_still_loses_nothing(server: EmbeddedServer) -> None:
    """SIGSTOP, shorter than the pings allow: everything is answered late, on one connection."""
    client = await nats.connect(server.url)
    settings = Settings(nats_url=server.url, instance="unit", bus_lost_s=60)
    async with actor_in_process(settings, client) as beats:
        load = Load(client)
        await load.start()
        await load.answered(50)
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSE_S)
        server.process.send_signal(signal.SIGCONT)
        await load.answered(50)
        await load.end()
    await client.close()

    assert beats[-1].bus.reconnects == 0
    assert set(load.outcomes) == {"answered"}


async def test_a_blocked_event_loop_loses_nothing(server: EmbeddedServer) -> None:
    """One second in which the actor does nothing at all."""
    client = await nats.connect(server.url)
    settings = Settings(nats_url=server.url, instance="unit", bus_lost_s=0.5)
    async with actor_in_process(settings, client) as beats:
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        for number in range(20):
            await client.publish("semif.v1.score", BODY, reply=f"{inbox}")
            if number == 10:
                time.sleep(1.0)  # noqa: ASYNC251 - the fault
        for _ in range(20):
            assert b'"choice"' in (await replies.next_msg(TIMEOUT_S)).data
    await client.close()

    assert beats[-1].bus.reconnects == 0


async def ready(client: Client) -> asyncio.Event:
    """Give an event that is set by the heartbeat of a ready actor."""
    seen = asyncio.Event()

    async def on_heartbeat(message: Msg) -> None:
        if b'"ready"' in message.data:
            seen.set()

    await client.subscribe("semif.v1.health.unit", cb=on_heartbeat)
    await client.flush()
    await client.flush()
    return seen


async def test_a_server_that_never_moves_again_ends_the_process(server: EmbeddedServer) -> None:
    """SIGSTOP for good: exit 6, and nothing on the way out waits for the server."""
    client = await nats.connect(server.url)
    is_ready = await ready(client)
    settings = Settings(nats_url=server.url, instance="unit", bus_lost_s=0.6)
    running = asyncio.create_task(serve(settings, lambda _settings, _ledger: InstantEngine()))
    async with asyncio.timeout(TIMEOUT_S):
        await is_ready.wait()
        server.process.send_signal(signal.SIGSTOP)
        try:
            assert await running == Exit.BUS_LOST
        finally:
            server.process.send_signal(signal.SIGCONT)
    await client.close()


@pytest.mark.parametrize("denied", ["semif.v1.score", "semif.v1.status", "$SRV.INFO"])
@pytest.mark.parametrize("when", ["before", "while serving"])
async def test_a_subject_that_is_denied_ends_the_process(
    tmp_path: Path, denied: str, when: str
) -> None:
    """Before READY it is a failed proof, exit 3; later the right was taken back, exit 6."""
    config, password = tmp_path / "nats.conf", tmp_path / "password"
    password.write_text("p", encoding="utf-8")

    def allow(rights: str) -> None:
        config.write_text(
            "authorization { users = ["
            f"{{ user: u, password: p, permissions: {{ {rights} }} }},"
            "{ user: watcher, password: p } ] }",
            encoding="utf-8",
        )

    deny = f'subscribe: {{ deny: "{denied}" }}'
    allow(deny if when == "before" else "")
    with embedded_server(tmp_path, config=config) as server:
        client = await nats.connect(server.url, user="watcher", password="p")  # noqa: S106
        is_ready = await ready(client)
        settings = Settings(
            nats_url=server.url, instance="unit", nats_user="u", nats_password_file=password
        )
        running = asyncio.create_task(serve(settings, lambda _settings, _ledger: InstantEngine()))
        async with asyncio.timeout(TIMEOUT_S):
            if when == "before":
                assert await running == Exit.PROOF_FAILED
                assert not is_ready.is_set()
            else:
                await is_ready.wait()
                allow(deny)
                server.process.send_signal(signal.SIGHUP)
                assert await running == Exit.BUS_LOST
        await client.close()
