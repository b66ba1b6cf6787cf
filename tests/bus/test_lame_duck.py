"""A server that will stop is left for another of its cluster; no request is lost on the way."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.bus import lame_duck
from actor.bus.connection import Connection
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.bus.tolerant_client import TolerantClient
from actor.settings import Settings

LAME_DUCK = 'lame_duck_duration: "30s", lame_duck_grace_period: "10s"\n'


@contextmanager
def cluster_of_two(folder: Path) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """Run two servers that know each other, and tell their clients."""
    with node(folder / "first", routes="") as first:
        [ports] = (folder / "first").glob("*.ports")
        [route] = json.loads(ports.read_text(encoding="utf-8"))["cluster"]
        with node(folder / "second", routes=f'"{route}"') as second:
            yield first, second


@contextmanager
def node(folder: Path, *, routes: str) -> Iterator[EmbeddedServer]:
    """Run one server of a cluster."""
    folder.mkdir()
    config = folder / "nats.conf"
    config.write_text(
        f'{LAME_DUCK}cluster {{ name: test, listen: "127.0.0.1:-1", routes: [{routes}] }}\n',
        encoding="utf-8",
    )
    with embedded_server(folder, config=config) as server:
        yield server


@asynccontextmanager
async def joined(first: EmbeddedServer, second: EmbeddedServer) -> AsyncIterator[Connection]:
    """Give a connection to ``first`` that knows of ``second``."""
    connection = Connection(Settings(nats_url=first.url, instance="unit", bus_lost_s=10))
    await connection.open()
    port = second.url.rsplit(":", 1)[1]
    async with asyncio.timeout(10):
        while not any(s.uri.port == int(port) for s in connection._client._server_pool):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    try:
        yield connection
    finally:
        await connection.close()


def signal_lame_duck(server: EmbeddedServer) -> None:
    """Send what an operator sends before a server is stopped. It ignores SIGTERM from then on."""
    server.process.send_signal(signal.SIGUSR2)


async def moved(connection: Connection) -> None:
    """Wait for the move."""
    async with asyncio.timeout(10):
        while not connection.moves:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def known_to(client: Client) -> None:
    """Ask until the server of ``client`` knows of the actor."""
    async with asyncio.timeout(10):
        while True:
            try:
                await client.request("work", b"", timeout=1)
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.01)
            else:
                return


async def test_no_request_is_lost_in_a_move(tmp_path: Path) -> None:
    """Callers at both servers ask without a pause: each has its answer, from one actor alone."""
    with cluster_of_two(tmp_path) as (first, second):
        async with joined(first, second) as actor:
            seen: list[bytes] = []

            async def answer(message: Msg) -> None:
                seen.append(message.data)
                generation = actor.generation
                await asyncio.sleep(0)
                assert await actor.publish(message.reply, message.data, generation=generation)

            await actor.subscribe("work", answer, queue="group")
            await actor.confirm()
            # The second server is where the callers stay; of the first one's only those count that
            # have asked before it cuts them.
            callers = [await nats.connect(second.url), await nats.connect(first.url)]
            asked: list[bytes] = []
            stop = asyncio.Event()

            async def ask(number: int) -> None:
                client = callers[number % 2]
                turn = 0
                while not stop.is_set():
                    payload = b"%d.%d" % (number, turn)
                    asked.append(payload)
                    reply = await client.request("work", payload, timeout=5)
                    assert reply.data == payload
                    turn += 1

            await known_to(callers[0])
            seen.clear()

            async def pass_barriers() -> None:
                while not stop.is_set():
                    await actor.barrier()

            asking = [asyncio.create_task(ask(number)) for number in range(8)]
            asking.append(asyncio.create_task(pass_barriers()))
            generation = actor.generation
            signal_lame_duck(first)
            await moved(actor)
            before = len(asked)
            async with asyncio.timeout(10):
                while len(asked) < before + 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*asking)

            assert sorted(seen) == sorted(asked)
            assert actor.generation == generation
            assert actor.incidents.reconnects == 0
            assert str(actor._client.connected_url.port) == second.url.rsplit(":", 1)[1]
            for caller in callers:
                await caller.close()
        first.process.kill()


async def test_everything_works_at_the_new_server(tmp_path: Path) -> None:
    """Subscriptions without a group follow, once each; new ones and the end of old ones work."""
    with cluster_of_two(tmp_path) as (first, second):
        async with joined(first, second) as actor:
            got: asyncio.Queue[bytes] = asyncio.Queue()
            plain = await actor.subscribe("plain", lambda message: got.put_nowait(message.data))
            await actor.confirm()

            signal_lame_duck(first)
            await moved(actor)
            first.process.kill()

            await actor.subscribe("new", lambda message: got.put_nowait(message.data))
            await actor.confirm()
            assert await actor.publish("plain", b"1")
            assert await actor.publish("new", b"2")
            await actor.end(plain)
            assert await actor.publish("plain", b"3")
            assert await actor.publish("new", b"4")
            await actor.barrier()
            await actor.barrier()
            assert [got.get_nowait() for _ in range(got.qsize())] == [b"1", b"2", b"4"]
            assert actor.incidents.reconnects == 0


async def test_alone_there_is_nowhere_to_go(tmp_path: Path) -> None:
    """The only server in lame duck mode: the connection goes on until it is cut."""
    (tmp_path / "alone").mkdir()
    config = tmp_path / "nats.conf"
    config.write_text(LAME_DUCK, encoding="utf-8")
    with embedded_server(tmp_path / "alone", config=config) as server:
        actor = Connection(Settings(nats_url=server.url, instance="unit"))
        await actor.open()
        signal_lame_duck(server)
        await finished(actor)

        await actor.barrier()
        assert actor.moves == 0
        assert actor.generation == 1
        await actor.close()
        server.process.kill()


async def finished(connection: Connection) -> None:
    """Wait for the end of a move, whatever it is."""
    async with asyncio.timeout(10):
        while connection._moving is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await connection._moving


async def hears(server: EmbeddedServer, got: asyncio.Event) -> None:
    """Publish at ``server`` until it is heard."""
    other = await nats.connect(server.url)
    async with asyncio.timeout(10):
        while not got.is_set():
            await other.publish("work", b"")
            await asyncio.sleep(0.01)
    await other.close()


async def test_without_the_other_server_nothing_changes(tmp_path: Path) -> None:
    """The other one is down: the connection stays where it is."""
    with cluster_of_two(tmp_path) as (first, second):
        async with joined(first, second) as actor:
            got = asyncio.Event()
            await actor.subscribe("work", lambda _message: got.set(), queue="group")
            await actor.confirm()
            second.process.kill()
            second.process.wait()

            signal_lame_duck(first)
            await finished(actor)

            assert await actor.publish("work", b"")
            async with asyncio.timeout(10):
                await got.wait()
            assert (actor.moves, actor.generation) == (0, 1)
        first.process.kill()


async def test_a_move_that_breaks_ends_in_a_reconnect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new connection breaks before it is ours: the actor is subscribed again, somewhere."""
    real = lame_duck._subscribe_groups

    async def breaks(client: TolerantClient, understudy: TolerantClient) -> set[int]:
        taken = await real(client, understudy)
        understudy.abort()
        return taken

    monkeypatch.setattr(lame_duck, "_subscribe_groups", breaks)
    with cluster_of_two(tmp_path) as (first, second):
        async with joined(first, second) as actor:
            got = asyncio.Event()
            await actor.subscribe("work", lambda _message: got.set(), queue="group")
            await actor.confirm()

            signal_lame_duck(first)
            await finished(actor)

            await hears(second, got)
            assert (actor.moves, actor.incidents.reconnects) == (0, 1)
        first.process.kill()


async def test_a_server_that_only_the_new_connection_knew_is_a_place_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one asked told of it, and could not be had itself."""
    real = lame_duck._subscribe_groups

    async def forgets(client: TolerantClient, understudy: TolerantClient) -> set[int]:
        client._server_pool[:] = [client._current_server]
        return await real(client, understudy)

    monkeypatch.setattr(lame_duck, "_subscribe_groups", forgets)
    with cluster_of_two(tmp_path) as (first, second):
        async with joined(first, second) as actor:
            got = asyncio.Event()
            await actor.subscribe("work", lambda _message: got.set(), queue="group")
            await actor.confirm()

            signal_lame_duck(first)
            await finished(actor)

            await hears(second, got)
            assert (actor.moves, actor.incidents.reconnects) == (1, 0)
        first.process.kill()
