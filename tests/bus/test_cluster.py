"""A cluster of three with one node killed under load: no request is answered twice or forgotten."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.bus.connection import Connection
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.settings import Settings

TIMEOUT_S = 20.0
CALL_TIMEOUT_S = 1.0


def start(folder: Path, stack: ExitStack) -> list[EmbeddedServer]:
    """Run three servers, each of which knows the others."""
    nodes: list[EmbeddedServer] = []
    routes = ""
    for number in range(3):
        place = folder / str(number)
        place.mkdir()
        config = place / "nats.conf"
        config.write_text(
            f'cluster {{ name: test, listen: "127.0.0.1:-1", routes: [{routes}] }}\n',
            encoding="utf-8",
        )
        nodes.append(stack.enter_context(embedded_server(place, config=config)))
        if not routes:
            [ports] = place.glob("*.ports")
            routes = f'"{json.loads(ports.read_text(encoding="utf-8"))["cluster"][0]}"'
    return nodes


@asynccontextmanager
async def responder(urls: list[str], answered: Counter[bytes]) -> AsyncIterator[Connection]:
    """Give an actor's connection that echoes the requests of a queue group."""
    connection = Connection(Settings(nats_url=urls[0], instance="unit", bus_lost_s=6))

    async def answer(message: Msg) -> None:
        answered[message.data] += 1
        generation = connection.generation
        await connection.publish(message.reply, message.data, generation=generation)

    await connection.open()
    await connection.subscribe("work", answer, queue="group")
    await connection.confirm()
    try:
        yield connection
    finally:
        await connection.close()


async def call(
    client: Client, number: int, stop: asyncio.Event, outcomes: dict[bytes, str]
) -> None:
    """Ask without a pause, and note what becomes of each request."""
    turn = 0
    while not stop.is_set():
        payload = b"%d.%d" % (number, turn)
        turn += 1
        try:
            reply = await client.request("work", payload, timeout=CALL_TIMEOUT_S)
        except nats.errors.Error as error:
            outcomes[payload] = type(error).__name__
            await asyncio.sleep(0.01)
        else:
            assert reply.data == payload
            outcomes[payload] = "answered"


async def answered_more(outcomes: dict[bytes, str], count: int) -> None:
    """Wait for so many answers more."""
    goal = len(outcomes) + count
    async with asyncio.timeout(TIMEOUT_S):
        while len(outcomes) < goal:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_node_is_killed_under_load(tmp_path: Path) -> None:
    """What was under way fails at its caller; then the other two nodes answer everything."""
    handled: Counter[bytes] = Counter()
    replies: Counter[str] = Counter()
    outcomes: dict[bytes, str] = {}
    stop = asyncio.Event()

    async def count(message: Msg) -> None:
        if message.data:  # the server's own no-responders is empty
            replies[message.subject] += 1

    with ExitStack() as servers:
        nodes = start(tmp_path, servers)
        urls = [node.url for node in nodes]
        async with AsyncExitStack() as stack:
            actors = [await stack.enter_async_context(responder([url], handled)) for url in urls]
            connect = partial(nats.connect, reconnect_time_wait=0.05, max_reconnect_attempts=-1)
            clients = [await connect(url) for url in urls]
            await clients[0].subscribe("_INBOX.>", cb=count)
            calls = [
                asyncio.create_task(call(clients[number % 3], number, stop, outcomes))
                for number in range(12)
            ]
            await answered_more(outcomes, 300)
            nodes[2].process.kill()
            await answered_more(outcomes, 300)
            async with asyncio.timeout(TIMEOUT_S):
                while actors[2].incidents.reconnects == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            settled = set(outcomes)
            await answered_more(outcomes, 300)
            stop.set()
            await asyncio.gather(*calls)
            for client in clients:
                await client.close()

    assert max(handled.values()) == 1
    assert max(replies.values()) == 1
    late = {payload: what for payload, what in outcomes.items() if payload not in settled}
    assert Counter(outcomes.values())["answered"] >= 600
    # Those that were asked before the last caller and actor were back may have failed.
    assert Counter(late.values())["answered"] >= len(late) - len(calls)
    assert [actor.incidents.reconnects for actor in actors] == [0, 0, 1]
    assert not any(actor.lost.is_set() for actor in actors)
