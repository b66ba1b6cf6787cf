# ruff: noqa: SLF001 - nats-py has no public way to do this
"""The move away from a server that will stop: to another one of its cluster, losing nothing.

nats-py would break the connection and make a new one, and requests would be lost in between:
those on the way, and those that find nobody. So a second connection is made first, and
takes over the life of the first:

1. Connect to another server, and subscribe there too, queue groups only: a group delivers each
   request once, however many connections its members have.
2. Unsubscribe from everything here and wait for the server's word: what it sent before has come.
3. Change over, in one step of the event loop. The subscriptions without a group follow now; during
   both, every message would come twice.

Requests in work are answered over the new connection: a reply inbox is known in the whole cluster.
Requests for ``status`` and discovery may find nobody for the time of one round trip.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import nats.errors
import structlog
from nats.protocol import command

from actor.bus.tolerant_client import TolerantClient

__all__ = ["move"]

_log = structlog.get_logger()

MOVE_TIMEOUT_S = 5.0
"""A lame duck serves for 10 s by default (``lame_duck_grace_period``) before it closes anything."""
ROUTE_S = 0.25
"""Seconds for the new subscriptions to be known at the old server. The protocol has no word for
that, and who unsubscribes there too early leaves its callers with nobody.
"""

UNDERSTUDY_OPTIONS: dict[str, Any] = {
    "allow_reconnect": False,
    "max_reconnect_attempts": 1,
    "reconnect_time_wait": 0,
    # It is nobody's connection until it is ours.
    "disconnected_cb": None,
    "closed_cb": None,
    "reconnected_cb": None,
    "discovered_server_cb": None,
    "lame_duck_mode_cb": None,
}


class _Understudy(TolerantClient):
    """The connection to come; what it receives is delivered by the subscriptions of ``owner``."""

    def __init__(self, owner: TolerantClient, others: list[Any]) -> None:
        super().__init__(require_tls=owner.require_tls)
        self._owner = owner
        self._others = others

    def _setup_server_pool(self, _servers: Any) -> None:
        for other in others_anew(self._others):
            self._server_pool.append(other)

    async def _process_msg(self, *message: Any) -> None:
        await self._owner._process_msg(*message)


async def move(client: TolerantClient, options: dict[str, Any]) -> bool:
    """Move to another server of the cluster; False when that cannot be done.

    ``options`` are those of the connect.
    """
    here = client._current_server
    others = [s for s in client._server_pool if s.uri.netloc != here.uri.netloc]
    if not others:
        return False
    understudy = _Understudy(client, others)
    try:
        async with asyncio.timeout(MOVE_TIMEOUT_S):
            await understudy.connect(**options | UNDERSTUDY_OPTIONS)
            taken = await _subscribe_groups(client, understudy)
    except Exception as error:  # noqa: BLE001 - this server then breaks the connection, as ever
        _log.warning("no move to another server", error=type(error).__name__)
        await understudy.close()
        return False
    await asyncio.sleep(ROUTE_S)
    try:
        async with asyncio.timeout(MOVE_TIMEOUT_S):
            for number in list(client._subs):
                await client._send_unsubscribe(number)
            await _barrier(client)
        if not understudy.usable:
            raise nats.errors.ConnectionClosedError  # noqa: TRY301 - as any other failure
    except Exception as error:  # noqa: BLE001 - whatever it is, there is one way out
        _log.warning("the move to another server broke", error=type(error).__name__)
        await understudy.close()
        await client.force_reconnect()  # subscribes again
        return False
    old = _change_over(client, understudy, taken)
    old.close()
    await old.wait_closed()
    return True


def others_anew(others: list[Any]) -> list[Any]:
    """Give servers as if none had been tried; with the name that their certificate must have."""
    return [replace(other, reconnects=0, last_attempt=None) for other in others]


async def _subscribe_groups(client: TolerantClient, understudy: TolerantClient) -> set[int]:
    """Subscribe what is in a queue group on the new connection too; gives their numbers."""
    groups = {
        number: subscription
        for number, subscription in client._subs.items()
        if subscription.queue and not subscription._closed
    }
    for number, subscription in groups.items():
        line = command.sub_cmd(subscription.subject, subscription.queue, number)
        await understudy._send_command(line)
    await _barrier(understudy)
    return set(groups)


async def _barrier(client: TolerantClient) -> None:
    await client.flush()
    await client.flush()  # the first one overtakes what is buffered
    if not client.usable:
        raise nats.errors.ConnectionReconnectingError


def _change_over(client: TolerantClient, understudy: TolerantClient, taken: set[int]) -> Any:
    """Give ``client`` the connection of ``understudy``; returns the transport it had.

    No await in here: between two steps of the event loop nothing can be published or received.
    The tasks that are cancelled wake up before those that are started, and leave the stream whole.
    """
    loop = asyncio.get_running_loop()
    for each in (client, understudy):
        for task in (each._reading_task, each._flusher_task, each._ping_interval_task):
            task.cancel()
    old, client._transport = client._transport, understudy._transport
    client._ps = understudy._ps
    client._ps.nc = client
    client._server_info = understudy._server_info
    client._max_payload = understudy._max_payload
    client._client_id = understudy._client_id
    there = understudy._current_server
    known = [s for s in client._server_pool if s.uri.netloc == there.uri.netloc]
    if not known:  # another server told of it on the way there
        known = [there]
        client._server_pool.append(there)
    client._current_server = known[0]
    # Its callbacks are the actor's own, and it has nothing more to say.
    understudy._transport = None
    understudy._status = TolerantClient.CLOSED
    for number, subscription in client._subs.items():
        if number not in taken and not subscription._closed:
            line = command.sub_cmd(subscription.subject, subscription.queue, number)
            client._transport.write(line)
    # Whoever waits for an answer of the old server has it from the new one, behind the above.
    for _ in client._pongs:
        client._transport.write(b"PING\r\n")
    client._pings_outstanding = 0
    client._reading_task = loop.create_task(client._read_loop())
    client._flusher_task = loop.create_task(client._flusher())
    client._ping_interval_task = loop.create_task(client._ping_interval())
    return old
