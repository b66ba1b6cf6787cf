"""The actor's connection against a real server: barriers, refusals, loss, failing callbacks."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import pytest
from actors import ask, decision, run_actor
from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.bus.connection import BusLost, Connection, Refusal
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.bus.guarded import guarded_callback
from actor.settings import Settings


def settings_for(server: EmbeddedServer, **changes: Any) -> Settings:
    """Give settings that connect to ``server``."""
    return msgspec.structs.replace(Settings(nats_url=server.url, instance="unit"), **changes)


async def test_a_barrier_means_that_the_server_knows_the_subscription(
    server: EmbeddedServer,
) -> None:
    """After a barrier a message from elsewhere is delivered, every time."""
    other = await nats.connect(server.url)
    connection = Connection(settings_for(server))
    await connection.open()
    for number in range(50):
        await delivered(connection, other, f"test.{number}")
    await connection.close()
    await other.close()


async def delivered(connection: Connection, other: Client, subject: str) -> None:
    """Subscribe, pass the barrier, and wait for what another connection publishes then."""
    got = asyncio.Event()
    await connection.subscribe(subject, lambda _message: got.set())
    await connection.barrier()
    await other.publish(subject, b"")
    async with asyncio.timeout(5):
        await got.wait()


async def test_a_denied_subscription_is_a_refusal(tmp_path: Path) -> None:
    """What nats-py only tells its error callback is raised by confirm."""
    config = tmp_path / "nats.conf"
    config.write_text(
        "authorization { users = [ { user: u, password: p,"
        ' permissions: { subscribe: { deny: "secret" } } } ] }',
        encoding="utf-8",
    )
    password = tmp_path / "password"
    password.write_text("p\n", encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        settings = settings_for(server, nats_user="u", nats_password_file=password)
        connection = Connection(settings)
        await connection.open()
        await connection.subscribe("open", lambda _message: None)
        await connection.confirm()
        await connection.subscribe("secret", lambda _message: None)

        with pytest.raises(Refusal, match="secret"):
            await connection.confirm()
        await connection.close()


async def test_a_callback_that_raises_does_not_end_its_subscription(
    server: EmbeddedServer,
) -> None:
    """Nothing leaves a callback: the next message is delivered."""
    connection = Connection(settings_for(server))
    await connection.open()
    seen: list[bytes] = []
    done = asyncio.Event()

    async def fails(message: Msg) -> None:
        seen.append(message.data)
        if len(seen) == 3:
            done.set()
        raise RuntimeError("a bug")

    await connection.subscribe("test", fails)
    await connection.barrier()
    for payload in (b"1", b"2", b"3"):
        assert await connection.publish("test", payload)
    async with asyncio.timeout(5):
        await done.wait()
    await connection.close()

    assert seen == [b"1", b"2", b"3"]


async def test_guarded_callback_takes_plain_and_async_functions() -> None:
    """Both kinds run, with their arguments, and their exceptions stay inside."""
    seen: list[Any] = []

    async def asynchronous(value: int) -> None:
        seen.append(value)
        raise ValueError

    def plain(value: int) -> None:
        seen.append(value)
        raise ValueError

    await guarded_callback(asynchronous)(1)
    await guarded_callback(plain)(2)

    assert seen == [1, 2]


async def test_without_a_server_opening_gives_up_in_time() -> None:
    """A server that is not there is waited for, then it is a loss."""
    settings = Settings(nats_url="nats://127.0.0.1:1", bus_lost_s=0.2)

    with pytest.raises(BusLost, match=r"0\.2 s"):
        await Connection(settings).open()


@pytest.mark.parametrize("url", ["nats://[", "nats://user:secret@[x]", "nats://u:secret@h:port"])
async def test_a_url_that_is_none_is_a_loss(url: str) -> None:
    """What cannot be parsed is no reason to retry, and what is in it stays out of the text."""
    with pytest.raises(BusLost, match="cannot be used") as caught:
        await Connection(Settings(nats_url=url, bus_lost_s=5)).open()

    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_publishing_without_a_server_drops(server: EmbeddedServer) -> None:
    """While disconnected nothing is buffered: a late reply could meet another request's inbox."""
    connection = Connection(settings_for(server, bus_lost_s=0.5))
    await connection.open()
    assert await connection.publish("test", b"x")

    server.process.kill()
    async with asyncio.timeout(10):
        await connection.lost.wait()

    assert not await connection.publish("test", b"x")
    await connection.close()


async def test_a_server_that_comes_back_is_no_loss(tmp_path: Path) -> None:
    """A restart within bus_lost_s is a reconnect, counted; the subscription lives again."""
    folder = tmp_path / "first"
    folder.mkdir()
    with embedded_server(folder) as server:
        connection = Connection(settings_for(server, bus_lost_s=30))
        await connection.open()
        got = asyncio.Event()
        await connection.subscribe("test", lambda _message: got.set())
        await connection.barrier()
        port = server.url.rsplit(":", 1)[1]
    again = tmp_path / "second"
    again.mkdir()
    with embedded_server(again, port=int(port)):
        other = await nats.connect(f"nats://127.0.0.1:{port}")
        async with asyncio.timeout(20):
            while not got.is_set():
                await other.publish("test", b"")
                await other.flush()
        await other.close()

        assert connection.incidents.reconnects == 1
        assert not connection.lost.is_set()
        await connection.close()


async def test_no_request_is_lost_while_an_actor_drains(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """Under a steady flood, SIGTERM costs no caller a timeout: an answer, or no responders."""
    async with run_actor(server, tiny_llama, tmp_path) as actor:
        await actor.until("ready")
        outcomes: list[str] = []
        refused = asyncio.Event()

        async def caller() -> None:
            while not refused.is_set():
                try:
                    reply = await ask(actor.client, decision(), timeout_s=30)
                except nats.errors.NoRespondersError:
                    outcomes.append("no responders")
                    refused.set()
                else:
                    body = json.loads(reply.data)
                    outcomes.append(body["error"]["code"] if "error" in body else "answered")
                    if len(outcomes) == 100:
                        actor.process.send_signal(signal.SIGTERM)

        await asyncio.gather(*(caller() for _ in range(32)))

        assert await actor.exit_code() == 0, actor.log_text()
    assert set(outcomes) <= {"answered", "draining", "no responders"}
    assert outcomes.count("answered") >= 100


async def test_two_actors_share_a_queue_group(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """Each request is answered once; both actors take part."""
    async with (
        run_actor(server, tiny_llama, tmp_path, instance="one") as one,
        run_actor(server, tiny_llama, tmp_path, instance="two") as two,
    ):
        await one.until("ready")
        await two.until("ready")
        inbox = one.client.new_inbox()
        subscription = await one.client.subscribe(inbox)
        body = json.dumps(decision()).encode()
        for _ in range(60):
            await one.client.publish("semif.v1.score", body, reply=inbox)
        names = [
            json.loads((await subscription.next_msg(30)).data)["served_by"]["instance"]
            for _ in range(60)
        ]
        with pytest.raises(nats.errors.TimeoutError):
            await subscription.next_msg(0.2)

    assert set(names) == {"one", "two"}
