"""A connection by itself, for tests of what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from actor.bus.connection import Connection
from actor.settings import Settings

TIMEOUT_S = 20.0


@asynccontextmanager
async def connection_to(url: str, **changes: Any) -> AsyncIterator[Connection]:
    """Give an open connection, and close it within the limit, also one that does not open."""
    connection = Connection(Settings(nats_url=url, instance="unit", **changes))
    try:
        await connection.open()
        yield connection
    finally:
        async with asyncio.timeout(TIMEOUT_S):
            await connection.close()


async def lost(connection: Connection) -> str:
    """Wait for the loss; gives its reason."""
    async with asyncio.timeout(TIMEOUT_S):
        await connection.lost.wait()
    return connection.incidents.lost_reason


async def until(connection: Connection, *, reconnects: int) -> None:
    """Wait until the connection has come back so many times."""
    async with asyncio.timeout(TIMEOUT_S):
        while connection.incidents.reconnects < reconnects or not connection.connected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
