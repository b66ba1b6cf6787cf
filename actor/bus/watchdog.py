"""Our own eye on the connection: nats-py believes in one that is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from actor.bus.tolerant_client import TolerantClient

__all__ = ["ping_interval_s", "watch"]

_log = structlog.get_logger()

PING_INTERVAL_MAX_S = 10.0
PINGS_A_LOSS = 6
"""Pings within ``bus_lost_s``: nats-py gives up at the third without an answer, which leaves half
of that time for another server.
"""
TICK_MAX_S = 1.0
TICKS_A_LOSS = 10


def ping_interval_s(bus_lost_s: float) -> float:
    """Give the seconds between pings, so that silence is news long before it is a loss."""
    return min(PING_INTERVAL_MAX_S, bus_lost_s / PINGS_A_LOSS)


async def watch(client: TolerantClient, *, bus_lost_s: float, lose: Callable[[str], None]) -> None:
    """Call ``lose`` with the reason once no server has answered a ping for ``bus_lost_s``.

    Only an answered ping counts: it proves that we write, the server works, and we read. A
    connection whose own tasks have ended is replaced before that; a subscription that nobody
    delivers is beyond repair, and a loss at once.
    """
    loop = asyncio.get_running_loop()
    tick_s = min(TICK_MAX_S, bus_lost_s / TICKS_A_LOSS)
    pongs, proved_s = client.pongs, loop.time()
    ticked_s = proved_s
    while True:
        await asyncio.sleep(tick_s)
        now_s = loop.time()
        # What a blocked event loop or a suspended process has missed is not the server's fault.
        proved_s += max(0.0, now_s - ticked_s - 2 * tick_s)
        ticked_s = now_s
        if deaf := client.deaf_subjects:
            lose(f"the delivery of {deaf[0]} has ended: a bug")
            return
        if client.pongs != pongs:
            pongs, proved_s = client.pongs, now_s
        elif now_s - proved_s >= bus_lost_s:
            lose(f"no answer from a server for {bus_lost_s:g} s")
            return
        if client.is_connected and not client.usable:
            _log.error("a task of the connection has ended: connecting anew")
            await client.force_reconnect()
