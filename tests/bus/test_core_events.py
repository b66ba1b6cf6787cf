"""Events of core subjects come once: whatever happens to one, it has its end, and is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from streams import jetstream_server

from actor.bus.asking import Asker
from actor.bus.connection import Connection
from actor.bus.core_events import CoreEvents, Process
from actor.bus.dead_letters import DeadLetters
from actor.bus.delivery import Delivery, Done, Verdict
from actor.rules.rule import CoreSource
from actor.settings import Settings


@asynccontextmanager
async def reading(
    folder: Path, process: Process, *, dead: bool = True
) -> AsyncIterator[tuple[CoreEvents, Connection, JetStreamContext]]:
    """Read ``in.*`` by a rule; ``dead`` tells whether there is a stream for dead letters."""
    with jetstream_server(folder) as server:
        settings = Settings(nats_url=server.url, instance="test", queue_jobs_max=2)
        connection = Connection(settings)
        await connection.open()
        asker = Asker(connection)
        await asker.open()
        js = connection._client.jetstream()
        if dead:
            await js.add_stream(StreamConfig(name="SEMIF_DEAD", subjects=["semif.v1.dead.>"]))
        events = CoreEvents(settings, connection, DeadLetters(settings, connection, asker))
        await events.open("r", CoreSource("in.*", "group"), process)
        await connection.confirm()
        try:
            yield events, connection, js
        finally:
            await events.stop()
            await asker.close()
            await connection.close()


async def test_what_is_left_at_the_end_of_a_drain_is_kept(tmp_path: Path) -> None:
    """Those being worked on, those that wait, and those that have not had their first step."""
    entered = asyncio.Event()

    async def process(_delivery: Delivery) -> Verdict:
        entered.set()
        await asyncio.Event().wait()
        return Done()

    async with reading(tmp_path / "js", process) as (events, connection, js):
        await connection.publish("in.1", b"1")
        await entered.wait()
        for number in range(2, 5):
            await connection.publish(f"in.{number}", b"%d" % number)
        await events.stop()
        abandoned = await events.abandon()
        await events.idle()
        letters = [await js.get_msg("SEMIF_DEAD", number) for number in range(1, 5)]
        health = events.health()["r"]

    assert abandoned == 4
    assert sorted(letter.data or b"" for letter in letters) == [b"1", b"2", b"3", b"4"]
    assert all("stopping" in (letter.headers or {})["Semif-Dead-Reason"] for letter in letters)
    assert (health.outcomes, health.dead, health.held) == ({"retry": 4}, 4, 0)


async def test_a_bug_costs_its_event_alone(tmp_path: Path) -> None:
    """A dead letter, and the next event is worked on."""

    async def process(delivery: Delivery) -> Verdict:
        if delivery.payload == b"bad":
            raise ZeroDivisionError
        return Done("published")

    async with reading(tmp_path / "js", process) as (events, connection, js):
        await connection.publish("in.1", b"bad")
        await connection.publish("in.2", b"good")
        await events.stop()
        await events.idle()
        letter = await js.get_msg("SEMIF_DEAD", 1)
        health = events.health()["r"]

    assert letter.data == b"bad"
    assert health.outcomes == {"retry": 1, "published": 1}


async def test_an_event_that_cannot_be_kept_is_counted_as_lost(tmp_path: Path) -> None:
    """There is no stream for dead letters: the counter and the log are all there is."""

    async def process(_delivery: Delivery) -> Verdict:
        raise ZeroDivisionError

    async with reading(tmp_path / "js", process, dead=False) as (events, connection, _js):
        await connection.publish("in.1", b"bad")
        await events.stop()
        await events.idle()
        health = events.health()["r"]

    assert (health.dead, health.dead_unstored) == (0, 1)
