"""What an acknowledgement proves: only what went before it by the same connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streams import jetstream_server, pulling

from actor.bus.delivery import Delivery, Done, Verdict


async def test_what_a_lost_connection_may_have_eaten_is_done_again(tmp_path: Path) -> None:
    """A core subject acknowledges nothing: after a reconnect nobody knows, so the event comes back.

    Acknowledged by the new connection, what was published by the old one would be lost for good.
    """
    generations: list[int] = []
    published_by: list[int] = []

    async def process(_delivery: Delivery) -> Verdict:
        connection = pulled.connection
        published_by.append(connection.generation)
        if len(published_by) == 1:
            back = asyncio.Event()
            connection.on_reconnect.append(back.set)
            connection._client.abort()
            async with asyncio.timeout(20):
                await back.wait()
        generations.append(connection.generation)
        return Done("published", published_by[-1])

    with jetstream_server(tmp_path / "js") as server:
        async with pulling(server, process) as pulled:
            await pulled.streams.job("x")
            await pulled.streams.until_settled()
            health = pulled.worker.health()

    assert len(published_by) == 2
    assert generations[0] > published_by[0]
    assert generations[1] == published_by[1]
    assert health.unconfirmed == 1
