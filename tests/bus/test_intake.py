"""A full actor leaves the queue group while another has room, and comes back."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import nats
import nats.errors
import pytest
from actors import ask, decision
from in_process import QuickEngine, actor_in_process
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.connection import Connection
from actor.bus.embedded import EmbeddedServer
from actor.bus.intake import Intake, Load, should_take
from actor.settings import Settings
from schemas.examples import EXAMPLES
from schemas.health import Heartbeat

LIMIT = 16


@pytest.mark.parametrize(
    ("taking", "full", "roomy", "wait_s", "peer_free", "expected"),
    [
        (True, False, True, 0.0, True, True),
        (True, True, False, 0.0, True, False),  # full
        (True, False, False, 9.0, True, True),  # neither full nor slow
        (True, False, True, 11.0, True, False),  # slow
        (True, True, False, 99.0, False, True),  # full, and the last one
        (False, False, False, 0.0, True, False),  # not yet half empty
        (False, False, True, 6.0, True, False),  # half empty, and still slow
        (False, False, True, 4.0, True, True),
        (False, True, False, 99.0, False, True),  # nobody else is left
    ],
)
def test_out_when_full_in_at_half_and_never_nobody(
    *, taking: bool, full: bool, roomy: bool, wait_s: float, peer_free: bool, expected: bool
) -> None:
    """With a longest wait of 10 s: out above it, in below half of it."""
    load = Load(full=full, roomy=roomy, wait_s=wait_s, wait_s_max=10.0)

    assert should_take(load, taking=taking, peer_free=peer_free) is expected


class HeldEngine(QuickEngine):
    """An engine that a test holds."""

    def __init__(self) -> None:
        import threading

        super().__init__()
        self.gate = threading.Event()

    def score(self, batch: Any) -> Any:
        """Answer once the gate is open."""
        self.gate.wait()
        return super().score(batch)


def peer(**changes: Any) -> bytes:
    """Give the heartbeat of another actor that takes requests."""
    beat = EXAMPLES["heartbeat"][""]
    assert isinstance(beat, Heartbeat)
    return msgspec.json.encode(
        msgspec.structs.replace(beat, instance="peer", interval_s=60.0, **changes)
    )


async def peer_that_stays(client: Client) -> Subscription:
    """Be another actor that takes requests, and says so whenever the held one leaves."""

    async def answer(message: Msg) -> None:
        if not json.loads(message.data)["bus"]["taking"]:
            await client.publish("semif.v1.health.peer", peer())

    subscription = await client.subscribe("semif.v1.health.held", cb=answer)
    await client.publish("semif.v1.health.peer", peer())
    return subscription


@asynccontextmanager
async def held_actor(
    server: EmbeddedServer,
) -> AsyncIterator[tuple[Client, HeldEngine, list[Heartbeat]]]:
    """Run an actor with places for :data:`LIMIT` requests whose engine is held."""
    engine = HeldEngine()
    client = await nats.connect(server.url)
    settings = Settings(
        nats_url=server.url, instance="held", device="cpu", queue_jobs_max=LIMIT, heartbeat_s=0.1
    )
    try:
        async with actor_in_process(settings, client, engine) as beats:
            yield client, engine, beats
            engine.gate.set()
    finally:
        engine.gate.set()
        await client.close()


async def until(beats: list[Heartbeat], *, taking: bool) -> None:
    """Wait for a heartbeat that says so."""
    async with asyncio.timeout(20):
        while beats[-1].bus.taking is not taking:
            await next_of(beats)


async def next_of(beats: list[Heartbeat]) -> None:
    """Wait for the next heartbeat."""
    seen = len(beats)
    while len(beats) == seen:  # noqa: ASYNC110 - a list that another task fills
        await asyncio.sleep(0.02)


async def test_a_full_actor_steps_out_and_in_again(server: EmbeddedServer) -> None:
    """While a peer has room its callers find nobody here; what it had accepted is answered."""
    async with held_actor(server) as (client, engine, beats):
        staying = await peer_that_stays(client)
        asked = [asyncio.create_task(ask(client, decision())) for _ in range(LIMIT)]
        await until(beats, taking=False)
        while beats[-1].bus.steps_out == 0:  # it says that it goes, and then goes
            await next_of(beats)

        with pytest.raises(nats.errors.NoRespondersError):
            await ask(client, decision())
        engine.gate.set()
        replies = [json.loads((await each).data) for each in asked]
        await until(beats, taking=True)
        again = json.loads((await ask(client, decision())).data)
        await staying.unsubscribe()

    # One caller fills 14 of 16 places; nobody is left without a reply.
    outcomes = Counter("choice" in reply for reply in replies)
    assert outcomes == {True: 14, False: 2}
    assert "choice" in again
    assert beats[-1].bus.steps_out == 1


@pytest.mark.parametrize("gone", ["draining", "full", "another group", "killed"])
async def test_the_last_one_stays_and_refuses(server: EmbeddedServer, gone: str) -> None:
    """A peer that takes nothing is no peer: callers are told ``overloaded`` and when to retry.

    Nor is one that is killed, whose last heartbeat said that all is well.
    """
    beat = {"state": "draining"} if gone == "draining" else {}
    async with held_actor(server) as (client, _, beats):
        bus = msgspec.structs.replace(
            beats[-1].bus,
            taking=gone != "full",
            queue_group="other" if gone == "another group" else "semif",
        )
        await client.publish("semif.v1.health.peer", peer(bus=bus, **beat))
        asked = [asyncio.create_task(ask(client, decision())) for _ in range(LIMIT)]
        done, held = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(3):
            await next_of(beats)
            refused = json.loads((await ask(client, decision())).data)["error"]
            assert (refused["code"], beats[-1].bus.steps_out) == ("overloaded", 0)

    assert all("error" in json.loads(each.result().data) for each in done)
    assert len(held) >= 1


class Member:
    """One of two that are full from the first moment on, and tell each other what they do."""

    def __init__(self, server: EmbeddedServer, name: str, other: str) -> None:
        self.connection = Connection(Settings(nats_url=server.url, instance=name))
        self.name, self.other = name, other
        self.other_takes = True
        self.words: list[asyncio.Task[bool]] = []
        self.intake = Intake(
            self.connection,
            {"work": lambda _message: None},
            group="group",
            load=lambda: Load(full=True, roomy=False, wait_s=0.0, wait_s_max=1.0),
            peer_free=lambda: self.other_takes,
            peer_stays=self.answered,
            changed=self.tell,
        )

    async def open(self) -> None:
        """Connect, listen to the other, and be in the group."""
        await self.connection.open()
        await self.connection.subscribe(f"takes.{self.other}", self.hear)
        await self.intake.step_in()
        await self.connection.confirm()

    def tell(self) -> None:
        """Say whether we take requests."""
        word = b"1" if self.intake.taking else b""
        self.words.append(asyncio.create_task(self.connection.publish(f"takes.{self.name}", word)))

    def hear(self, message: Msg) -> None:
        """Know whether the other does."""
        self.other_takes = bool(message.data)

    async def answered(self) -> bool:
        """Wait for the other's word, which in the worst case it gave before it changed its mind."""
        return True


async def test_two_that_fill_at_the_same_moment_do_not_both_leave(server: EmbeddedServer) -> None:
    """Callers are told ``overloaded`` by the one that stays, instead of finding nobody."""
    members = [Member(server, "a", "b"), Member(server, "b", "a")]
    for member in members:
        await member.open()
    running = [asyncio.create_task(member.intake.run()) for member in members]
    async with asyncio.timeout(20):
        while not all(len(member.words) >= 2 for member in members):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert members[0].intake.taking or members[1].intake.taking
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for member in members:
        await member.intake.close()
        await asyncio.gather(*member.words)
        await member.connection.close()


async def test_no_request_waits_for_a_slow_actor_that_a_fast_one_could_take(
    server: EmbeddedServer,
) -> None:
    """One actor of a second a request beside two fast ones: of 60 none ends at its deadline.

    Without stepping out a third of them would queue behind the slow one, for 20 s. Those it had
    taken before and cannot answer in time it gives back at once.
    """
    client = await nats.connect(server.url)
    slow = {"SEMIF_BATCH_ROWS_MAX": "1", "SEMIF_QUEUE_JOBS_MAX": "8"}
    async with AsyncExitStack() as stack:
        for name, seconds, settings in (("slow", "1", slow), ("a", "0", {}), ("b", "0", {})):
            await stack.enter_async_context(instant(server, client, name, seconds, settings))
        asked = []
        for _ in range(60):
            asked.append(asyncio.create_task(ask(client, decision(), timeout_s=10)))
            await asyncio.sleep(0.03)
        bodies = [json.loads((await each).data) for each in asked]
    await client.close()

    codes = Counter(body["error"]["code"] if "error" in body else "answered" for body in bodies)
    by = Counter(body["served_by"]["instance"] for body in bodies if "error" not in body)
    assert set(codes) <= {"answered", "overloaded"}
    assert codes["overloaded"] < 10
    assert 1 <= by["slow"] < 10


@asynccontextmanager
async def instant(
    server: EmbeddedServer, client: Client, name: str, seconds: str, settings: dict[str, str]
) -> AsyncIterator[None]:
    """Run an actor whose engine takes so many seconds for a batch, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")}
    environment |= {
        "SEMIF_NATS_URL": server.url,
        "SEMIF_DEVICE": "cpu",
        "SEMIF_INSTANCE": name,
        "SEMIF_HEARTBEAT_S": "0.2",
        "SEMIF_TIMEOUT_MS_DEFAULT": "4000",
        "SEMIF_LOG_LEVEL": "error",
        **settings,
    }
    beats = await client.subscribe(f"semif.v1.health.{name}")
    command = ("-m", "actor.cli.bench.responders", "instant", seconds)
    process = await asyncio.create_subprocess_exec(sys.executable, *command, env=environment)
    try:
        async with asyncio.timeout(30):
            async for message in beats.messages:
                if json.loads(message.data)["state"] == "ready":
                    break
        yield
    finally:
        process.kill()
        await process.wait()
        await beats.unsubscribe()
