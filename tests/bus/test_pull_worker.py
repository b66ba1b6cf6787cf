"""Deliveries to their end, whatever happens to the server, the consumer and the worker."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import nats
import pytest
from nats.aio.msg import Msg
from streams import (
    SETTINGS,
    GatedEngine,
    Streams,
    jetstream_server,
    make_streams,
    pulling,
    until_entered,
    working,
)

from actor.bus.connection import Connection
from actor.bus.delivery import Delivery, Done, Hopeless, Retry, Verdict
from actor.bus.embedded import embedded_server

PULL_SUBJECT = "$JS.API.CONSUMER.MSG.NEXT.SEMIF_JOBS.semif"
ACK_SUBJECT = "$JS.ACK.SEMIF_JOBS.semif.>"


async def done(_delivery: Delivery) -> Verdict:
    """Do nothing, well."""
    return Done()


async def heard(streams: Streams, subject: str) -> asyncio.Queue[Msg]:
    """Listen to what actors say to the server."""
    queue: asyncio.Queue[Msg] = asyncio.Queue()

    async def on_message(message: Msg) -> None:
        queue.put_nowait(message)

    await streams.client.subscribe(subject, cb=on_message)
    await streams.client.flush()
    await streams.client.flush()  # the first one overtakes the SUB
    return queue


async def next_word(queue: asyncio.Queue[Msg], word: bytes) -> Msg:
    """Wait for the next acknowledgement that begins with ``word``."""
    async with asyncio.timeout(20):
        while True:
            message = await queue.get()
            if message.data.startswith(word):
                return message


async def test_a_long_job_is_not_delivered_again(tmp_path: Path) -> None:
    """While it runs the server is told so: long after ack_wait it was delivered once."""
    with jetstream_server(tmp_path / "js") as server:
        engine = GatedEngine()
        async with working(server, engine) as streams:
            engine.gate.clear()
            words = await heard(streams, ACK_SUBJECT)
            await streams.job("long")
            for _ in range(5):  # each a third of ack_wait
                await next_word(words, b"+WPI")
            engine.gate.set()
            await streams.until_settled()
            await streams.until_health(lambda jobs: jobs.outcomes == {"done": 1})
            assert streams.health.deliveries == 1
            assert len(await streams.results()) == 1

    assert engine.scored == ["long"]


async def test_a_job_held_is_not_done_twice(tmp_path: Path) -> None:
    """A second delivery of what still runs here is the same job, under its newest name."""
    with jetstream_server(tmp_path / "js") as server:
        engine = GatedEngine()
        async with working(server, engine) as streams:
            engine.gate.clear()
            words = await heard(streams, ACK_SUBJECT)
            await streams.job("twice")
            first = await next_word(words, b"+WPI")
            await streams.client.publish(first.subject, b"-NAK")
            await streams.until_health(lambda jobs: jobs.deliveries == 2 and jobs.held == 1)
            engine.gate.set()
            acknowledged = await next_word(words, b"+ACK")
            await streams.until_settled()
            assert len(await streams.results()) == 1

    assert engine.scored == ["twice"]
    assert acknowledged.subject.split(".")[4] == "2"


async def test_a_lost_acknowledgement_gives_no_second_result(tmp_path: Path) -> None:
    """An actor stored the result and died: the job is settled, with no second answer."""
    with jetstream_server(tmp_path / "js") as server:
        client = await nats.connect(server.url)
        streams = await make_streams(client, SETTINGS)
        sequence = await streams.job("again")
        other = await streams.js.pull_subscribe_bind(stream="SEMIF_JOBS", durable="semif")
        [message] = await other.fetch(1)
        taken_ns = message.reply.split(".")[7]
        await streams.js.publish(
            "semif.v1.results.again",
            b"the first result",
            headers={"Nats-Msg-Id": f"SEMIF_JOBS.{sequence}.{taken_ns}"},
        )
        await message.nak()
        engine = GatedEngine()
        async with working(server, engine):
            await streams.until_settled()
            [result] = await streams.results()
        await client.close()

    assert engine.scored == []
    assert result.data == b"the first result"


async def test_a_message_nobody_survived_is_not_tried(tmp_path: Path) -> None:
    """Delivered as often as may be without an end, it is a dead letter before it kills again."""
    with jetstream_server(tmp_path / "js") as server:
        client = await nats.connect(server.url)
        streams = await make_streams(client, SETTINGS)
        await streams.job("killer", b"body")
        other = await streams.js.pull_subscribe_bind(stream="SEMIF_JOBS", durable="semif")
        for _ in range(3):
            [message] = await other.fetch(1)
            await message.nak()
        engine = GatedEngine()
        async with working(server, engine, deliveries_max=3):
            await streams.until_settled()
            [letter] = await streams.dead()
            assert await streams.results() == []
        await client.close()

    assert engine.scored == []
    assert letter.data == b"body"
    assert letter.headers is not None
    assert letter.headers["Semif-Dead-Code"] == "gave_up"
    assert letter.headers["Semif-Dead-Deliveries"] == "4"


async def test_what_was_done_at_the_last_delivery_is_not_given_up(tmp_path: Path) -> None:
    """The last one who had it stored its result and died: no dead letter beside the result."""
    with jetstream_server(tmp_path / "js") as server:
        client = await nats.connect(server.url)
        streams = await make_streams(client, SETTINGS)
        sequence = await streams.job("last")
        other = await streams.js.pull_subscribe_bind(stream="SEMIF_JOBS", durable="semif")
        [message] = await other.fetch(1)
        taken_ns = message.reply.split(".")[7]
        await streams.js.publish(
            "semif.v1.results.last",
            b"the result",
            headers={"Nats-Msg-Id": f"SEMIF_JOBS.{sequence}.{taken_ns}"},
        )
        await message.nak()
        async with working(server, deliveries_max=1):
            await streams.until_settled()
            [result] = await streams.results()
            assert await streams.dead() == []
            await streams.job("next")
            await streams.until_settled()
        await client.close()

    assert result.data == b"the result"


async def test_a_consumer_that_goes_and_comes_back(tmp_path: Path) -> None:
    """Its loss is told, it is looked for without haste, and work goes on when it is back."""
    with embedded_server(tmp_path, jetstream=True, trace=True) as server:
        async with working(server) as streams:
            await streams.job("before")
            await streams.until_settled()
            await streams.js.delete_consumer("SEMIF_JOBS", "semif")
            await streams.until_health(lambda jobs: jobs.fault == "the consumer is not there")
            # A listener of the test's own would be somebody there: the server's log tells.
            before = pulls_in(server.log)
            await streams.job("after")

            async def looked_for() -> bool:
                return pulls_in(server.log) >= before + 2

            await streams.until(looked_for)
            await streams.make_consumer()
            await streams.until_settled()
            await streams.until_health(lambda jobs: jobs.fault is None)
            looks = pulls_in(server.log) - before
            names = [result.subject for result in await streams.results()]

    assert names == ["semif.v1.results.before", "semif.v1.results.after"]
    assert looks < 20


def pulls_in(log: Path) -> int:
    """Give how often the consumer was asked for messages, by the server's log."""
    return log.read_text(encoding="utf-8").count(f"[PUB {PULL_SUBJECT}")


async def test_a_server_that_restarts_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Killed with jobs held, and started again on its store: one result for each job."""
    with jetstream_server(tmp_path / "js") as server, ExitStack() as again:
        port = int(server.url.rpartition(":")[2])
        engine = GatedEngine()
        async with working(server, engine, batch_rows_max=4) as streams:
            engine.gate.clear()
            for number in range(20):
                await streams.job(f"n{number}")
            await until_entered(engine)
            server.process.kill()
            server.process.wait()
            engine.gate.set()
            again.enter_context(jetstream_server(tmp_path / "js", port))
            fresh = await nats.connect(server.url)
            seen = replace(streams, client=fresh, js=fresh.jetstream())
            await seen.until_settled()
            names = sorted(result.subject for result in await seen.results())
            assert await seen.dead() == []
            await fresh.close()
            await seen.until(lambda: reconnected(streams))  # the actor's last words are awaited

    assert names == sorted(f"semif.v1.results.n{number}" for number in range(20))


async def reconnected(streams: Streams) -> bool:
    """Tell whether the test's own client has its server again."""
    return bool(streams.client.is_connected)


async def test_a_process_that_raises_is_a_delivery_to_repeat(tmp_path: Path) -> None:
    """A bug costs its message deliveries, at the last one a dead letter, and no other anything."""
    attempts: list[str] = []

    async def process(delivery: Delivery) -> Verdict:
        attempts.append(delivery.subject)
        if delivery.subject.endswith("bug"):
            raise RuntimeError("secret")
        return Done("fine")

    with jetstream_server(tmp_path / "js") as server:
        async with pulling(server, process, deliveries_max=2) as pulled:
            await pulled.streams.job("bug")
            await pulled.streams.job("good")
            await pulled.streams.until_settled()
            [letter] = await pulled.streams.dead()
            await pulled.worker.idle()
            health = pulled.worker.health()

    assert attempts.count("semif.v1.jobs.bug") == 2
    assert health.outcomes == {"fine": 1, "gave_up": 1}
    assert letter.headers is not None
    assert "secret" not in str(letter.headers)


async def test_a_dead_letter_that_cannot_be_stored_keeps_its_message(tmp_path: Path) -> None:
    """Without a stream for it the message stays where it is, and is buried once there is one."""

    async def process(_delivery: Delivery) -> Verdict:
        return Hopeless("bad", "for a test")

    with jetstream_server(tmp_path / "js") as server:
        async with pulling(server, process) as pulled:
            streams = pulled.streams
            await streams.js.delete_stream("SEMIF_DEAD")
            await streams.job("poison")

            async def refused() -> bool:
                return pulled.worker.health().dead_unstored > 0

            await streams.until(refused)
            assert await streams.jobs_left() == 1
            await streams.js.add_stream(name="SEMIF_DEAD", subjects=["semif.v1.dead.>"])
            await streams.until_settled()
            [letter] = await streams.dead()

    assert letter.subject == "semif.v1.dead.poison"


async def test_no_more_is_held_than_there_is_room_for(tmp_path: Path) -> None:
    """Of many messages only so many are taken; the next ones come as those end."""
    most = 0
    held = 0
    gate = asyncio.Event()

    async def process(_delivery: Delivery) -> Verdict:
        nonlocal most, held
        held += 1
        most = max(most, held)
        if held == 4:
            gate.set()
        await gate.wait()
        held -= 1
        return Done()

    with jetstream_server(tmp_path / "js") as server:
        async with pulling(server, process, room=50, held_max=4) as pulled:
            for number in range(30):
                await pulled.streams.job(f"n{number}")
            await pulled.streams.until_settled()

    assert most == 4


async def test_what_is_given_back_comes_to_another_at_once(tmp_path: Path) -> None:
    """A worker that is stopped and abandoned keeps nothing for the rest of ack_wait."""
    started = asyncio.Semaphore(0)

    async def never(_delivery: Delivery) -> Verdict:
        started.release()
        await asyncio.Event().wait()
        return Done()

    with jetstream_server(tmp_path / "js") as server:
        client = await nats.connect(server.url)
        streams = await make_streams(
            client, msgspec.structs.replace(SETTINGS, ack_wait_s=60.0, dedup_s=200.0)
        )
        for number in range(5):
            await streams.job(f"n{number}")
        async with pulling(server, never, streams=streams, ack_wait_s=60) as pulled:
            for _ in range(5):
                await started.acquire()
            await pulled.worker.stop()
            assert await pulled.worker.abandon() == 5
        async with pulling(server, done, streams=streams, ack_wait_s=60):
            await streams.until_settled()
        await client.close()


@pytest.mark.parametrize("verdict", [Done("x"), Retry("y", "why"), Hopeless("z", "why")])
async def test_every_verdict_settles_what_came_while_the_connection_was_away(
    verdict: Verdict, tmp_path: Path
) -> None:
    """The connection breaks while a message is worked on: it is settled after all, once."""
    entered, gate = asyncio.Event(), asyncio.Event()
    tries = 0

    async def process(_delivery: Delivery) -> Verdict:
        nonlocal tries
        tries += 1
        entered.set()
        await gate.wait()
        return verdict if tries == 1 else Done("again")

    with jetstream_server(tmp_path / "js") as server:
        async with pulling(server, process) as pulled:
            await pulled.streams.job("one")
            await entered.wait()
            cut(pulled.connection)
            gate.set()
            await pulled.streams.until_settled()
            await pulled.worker.idle()
            health = pulled.worker.health()

    assert pulled.connection.incidents.reconnects == 1
    assert health.held == 0
    assert sum(health.outcomes.values()) >= 1


def cut(connection: Connection) -> None:
    """Break the TCP connection, as a network does."""
    connection._client.abort()


async def test_a_message_above_the_bytes_asked_for_is_fetched_alone(tmp_path: Path) -> None:
    """A limit that has become smaller than a stored message neither hides it nor costs a storm."""
    with embedded_server(tmp_path, jetstream=True) as server:
        client = await nats.connect(server.url)
        before = await make_streams(client, SETTINGS)
        await before.job("large", b"x" * 5000)
        await client.close()
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 1000\n", encoding="utf-8")
    with embedded_server(tmp_path, jetstream=True, trace=True, config=config) as server:
        client = await nats.connect(server.url)
        streams = replace(before, client=client, js=client.jetstream())
        async with pulling(server, done, streams=streams, bytes_max=1) as pulled:
            await streams.job("small", b"x")
            await streams.until_settled()
            await pulled.worker.idle()
            assert pulled.worker.health().outcomes == {"done": 2}
        await client.close()

    assert pulls_in(server.log) < 20


async def test_a_consumer_that_refuses_is_not_pressed(tmp_path: Path) -> None:
    """One whose requests may be for two messages only is asked now and then, and says why."""
    with embedded_server(tmp_path, jetstream=True, trace=True) as server:
        async with pulling(server, done, room=9) as pulled:
            streams = pulled.streams
            await streams.js.delete_consumer("SEMIF_JOBS", "semif")
            config = {"durable_name": "semif", "ack_policy": "explicit", "max_batch": 2}
            made = await streams.client.request(  # nats-py does not know max_batch
                "$JS.API.CONSUMER.DURABLE.CREATE.SEMIF_JOBS.semif",
                json.dumps({"stream_name": "SEMIF_JOBS", "config": config}).encode(),
            )
            assert "error" not in json.loads(made.data)

            async def told() -> bool:
                return "MaxRequestBatch" in (pulled.worker.health().fault or "")

            await streams.until(told)
            await streams.job("slow")
            await streams.until_settled()

    assert pulls_in(server.log) < 20
