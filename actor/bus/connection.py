"""The actor's connection: every option explicit, every callback wrapped.

nats-py's defaults are wrong for a service in several places, and an exception out of one of its
callbacks ends the read loop while ``is_connected`` stays true (nats.py issue 204). So no callback
here raises, and what they learn becomes state that the service awaits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.credentials import BadCredentials, credentials, servers, wants_tls
from actor.bus.guarded import guarded_callback
from actor.bus.incidents import BusLost, Incidents, Refusal
from actor.bus.lame_duck import move
from actor.bus.reconnecting import delay_s
from actor.bus.tolerant_client import CredentialsRefused, TolerantClient
from actor.bus.watchdog import ping_interval_s, watch
from actor.settings import Settings
from actor.wire_size import wire_bytes

__all__ = ["BusLost", "Connection", "Refusal"]

_log = structlog.get_logger()

CONNECT_TIMEOUT_S = 2
PINGS_OUTSTANDING_MAX = 2
OUTBOUND_BYTES_MAX = 8 * 1024 * 1024
"""Published and not yet taken by the kernel; what is over it is dropped."""
PENDING_MSGS_MAX = 32_768
PENDING_BYTES_MAX = 65 * 1024 * 1024
"""Of each subscription, between nats-py's read loop and our callback, which only enqueues. nats-py
drops silently what is over these, so they must never be reached: our own admission refuses, with a
reply. Between two turns of the event loop nats-py reads at most 64 KiB that asyncio holds and
256 KiB that it takes from the kernel at once: 16,000 messages of the least size there is, 20 bytes,
and bytes of one message of at most 64 MiB, a server's hard limit.
"""
BARRIER_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0


class Connection:
    """One connection. Publishing never blocks on the server, and drops while there is none."""

    def __init__(
        self, settings: Settings, *, on_unreadable: Callable[[], None] = lambda: None
    ) -> None:
        self._settings = settings
        self._client = TolerantClient(on_unreadable, require_tls=wants_tls(settings))
        self._options: dict[str, Any] = {}
        self.incidents = Incidents(self._client, gives_up_in_s=settings.bus_lost_s)
        self.lost = self.incidents.lost
        self.on_reconnect = self.incidents.on_reconnect
        self._watching: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self.moves = 0
        """Times that a server in lame duck mode was left for another without a break."""

    @property
    def connected(self) -> bool:
        """True while there is a server to publish to."""
        return self._client.usable

    @property
    def generation(self) -> int:
        """Which connection this is: one more at each reconnect, the same after a planned move.

        To read in the callback of a message, and to give to :meth:`publish` with the reply.
        """
        return self._client.generation

    @property
    def payload_bytes_max(self) -> int:
        """Largest message the server takes, headers included."""
        return int(self._client.max_payload)

    async def open(self) -> None:
        """Connect; raises :class:`BusLost` when no server answers within ``bus_lost_s``.

        At once when the credentials cannot be used, or the server refuses them: neither gets
        better by waiting.
        """
        settings = self._settings
        try:
            self._options = self._connect_options()
            async with asyncio.timeout(settings.bus_lost_s):
                await self._client.connect(**self._options)
        except TimeoutError:
            last = type(self._client.last_error).__name__
            raise BusLost(
                f"no server answered within {settings.bus_lost_s:g} s (last error: {last})"
            ) from None
        except BadCredentials as error:
            raise BusLost(str(error)) from None
        except CredentialsRefused as error:
            raise BusLost(f"the server refuses the credentials: {error}") from None
        except Exception as error:  # noqa: BLE001 - whatever it is, there will be no connection
            # A broken URL; what the network does is retried inside connect(). The type alone: the
            # text of a URL parser may hold the password.
            raise BusLost(
                f"the URL or the credentials cannot be used ({type(error).__name__})"
            ) from None
        watching = watch(self._client, bus_lost_s=settings.bus_lost_s, lose=self.incidents.lose)
        self._watching = asyncio.create_task(watching, name="bus watchdog")
        self._watching.add_done_callback(self._on_watchdog_end)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        *,
        reply: str = "",
        generation: int | None = None,
    ) -> bool:
        """Publish now or not at all; False when it was dropped.

        nats-py would keep it for the next connection: a late reply to an inbox that may by then
        be another request's, a stale heartbeat that says the actor is well. With a ``generation``
        it is also dropped once that connection has been lost, whatever came after.
        """
        client = self._client
        if not client.usable or (generation is not None and generation != client.generation):
            return False
        try:
            # nats-py counts the payload alone, and for one byte too many the server closes the
            # connection for good. Nor does it bound what waits: it would make us wait.
            size = wire_bytes(payload, headers)
            if size > client.max_payload:
                self.incidents.warn("a message is larger than the server takes", size=size)
                return False
            if client.unsent_bytes + size > OUTBOUND_BYTES_MAX:
                self.incidents.warn("the server reads too slowly", unsent=client.unsent_bytes)
                return False
            await client.publish(subject, payload, reply, headers)
        except Exception as error:  # noqa: BLE001 - closed between the check and here, a bad subject
            self.incidents.warn("publish failed", error=type(error).__name__)
            return False
        return True

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None] | None], *, queue: str = ""
    ) -> Subscription:
        """Subscribe; whether the server allows it is known after :meth:`confirm`."""
        await self._moved()
        self.incidents.expect(subject)
        return await self._client.subscribe(
            subject,
            queue=queue,
            cb=guarded_callback(callback),
            pending_msgs_limit=PENDING_MSGS_MAX,
            pending_bytes_limit=PENDING_BYTES_MAX,
        )

    def new_inbox(self) -> str:
        """Give a reply subject of our own that nobody has used."""
        inbox: str = self._client.new_inbox()
        return inbox

    async def barrier(self) -> None:
        """Wait until the server has processed everything sent before.

        Twice: nats-py writes the PING of a flush ahead of commands that still sit in its buffer,
        so one flush proves nothing; the second PING is behind them. Raises an error of nats-py
        when the connection broke meanwhile: a flush then returns without a word.
        """
        generation = self.generation
        await self._client.flush(timeout=BARRIER_TIMEOUT_S)
        await self._client.flush(timeout=BARRIER_TIMEOUT_S)
        if not self.connected or self.generation != generation:
            raise nats.errors.ConnectionReconnectingError

    async def confirm(self) -> None:
        """Make sure that the server took every subscription; raises :class:`Refusal`.

        A denied SUB raises nothing. The server reads a connection in order, and its error comes
        before the PONG of the barrier: that is as strong as a message to each of our subjects,
        which we need not be allowed to publish to. From here on a refusal of these subjects is a
        loss.
        """
        while not self.lost.is_set():
            try:
                await self.barrier()
            except nats.errors.Error:
                # It subscribes again when it is back; the delay keeps a broken one from spinning.
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay_s(self._settings.bus_lost_s)):
                        await self.lost.wait()
                continue
            self.incidents.confirm()
            return
        raise BusLost(self.incidents.lost_reason)

    async def end(self, *subscriptions: Subscription) -> None:
        """Unsubscribe without losing a message that the server has already sent.

        ``Subscription.drain`` would: its flush overtakes its UNSUB (see :meth:`barrier`).
        """
        await self._moved()
        try:
            for subscription in subscriptions:
                await self._client.announce_end(subscription)
            if subscriptions and self.connected and not self.lost.is_set():
                await self.barrier()
        except Exception as error:  # noqa: BLE001 - the server forgets it with the connection
            _log.warning("unsubscribe failed", error=type(error).__name__)
        for subscription in subscriptions:
            await self._client.end(subscription)

    async def close(self) -> None:
        """Send what is buffered and close; gives up on a server that does not read."""
        self.incidents.closing = True
        if self._watching:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        closing = asyncio.create_task(self._close(), name="bus close")
        _, late = await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        if late:
            self._client.abort()  # wakes whatever waits for the server
            _, late = await asyncio.wait({closing}, timeout=1.0)
        if late:
            closing.cancel()
            _log.warning("the connection is left behind unclosed")

    async def _close(self) -> None:
        try:
            await self._moved()
            if self.connected and not self.lost.is_set():
                await self.barrier()
            else:  # nobody reads any more: nats-py would wait for the last bytes to be taken
                self._client.forget_unsent()
                self._client.abort()
        except Exception as error:  # noqa: BLE001 - see below
            _log.warning("the last messages may be lost", error=type(error).__name__)
        try:
            await self._client.close()
        except Exception as error:  # noqa: BLE001 - the process ends whatever happens here
            _log.warning("close failed", error=type(error).__name__)

    def _connect_options(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "servers": servers(settings),
            "name": f"semif-actor {settings.instance}",
            **self.incidents.callbacks(),
            "lame_duck_mode_cb": guarded_callback(self._on_lame_duck),
            "reconnect_to_server_handler": self._choose_server,
            "allow_reconnect": True,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": delay_s(self._settings.bus_lost_s),
            "connect_timeout": CONNECT_TIMEOUT_S,
            "ping_interval": ping_interval_s(settings.bus_lost_s),
            "max_outstanding_pings": PINGS_OUTSTANDING_MAX,
            "drain_timeout": CLOSE_TIMEOUT_S,
            # No buffer of nats-py's own: it keeps messages for another connection, and a full one
            # makes publishing wait.
            "pending_size": 0,
            **credentials(settings),
        }

    async def _moved(self) -> None:
        """Wait for a move in progress: what is subscribed must not change under it."""
        if self._moving:
            await asyncio.wait({self._moving})

    def _on_watchdog_end(self, watching: asyncio.Task[None]) -> None:
        if not watching.cancelled() and watching.exception() is not None:
            name = type(watching.exception()).__name__
            self.incidents.lose(f"the watchdog failed, a bug: {name}")

    def _on_lame_duck(self) -> None:
        """Called by the read loop, which must go on: the move needs it."""
        if self.incidents.closing or (self._moving and not self._moving.done()):
            return
        _log.warning("bus server enters lame duck mode")
        self._moving = asyncio.create_task(self._move(), name="bus move")

    async def _move(self) -> None:
        try:
            moved = await move(self._client, self._options)
        except Exception:  # noqa: BLE001 - the server breaks the connection, and a new one is made
            _log.exception("the move to another server failed: a bug")
            return
        self.moves += moved
        if moved:
            self.incidents.tell_of_reconnect()
        _log.info("bus moved" if moved else "no other bus server to move to", moves=self.moves)

    def _choose_server(self, servers: list[Any], _info: dict[str, Any]) -> tuple[Any, float]:
        """Pick a server and a delay. The delay replaces nats-py's own, so it is never 0."""
        return random.choice(servers), delay_s(self._settings.bus_lost_s)  # noqa: S311 - a spread
