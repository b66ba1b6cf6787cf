"""The actor's connection: every option explicit, every callback wrapped.

nats-py's defaults are wrong for a service in several places, and an exception out of one of its
callbacks ends the read loop while ``is_connected`` stays true (nats.py issue 204). So no callback
here raises, and what they learn becomes state that the service awaits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.credentials import credentials, servers
from actor.bus.tolerant_client import TolerantClient
from actor.settings import Settings

__all__ = ["BusLost", "Connection", "Refusal", "guarded_callback"]

_log = structlog.get_logger()

CONNECT_TIMEOUT_S = 2
PING_INTERVAL_S = 10
PINGS_OUTSTANDING_MAX = 2
RECONNECT_DELAY_S = (0.5, 5.0)
"""Spread, so that many clients do not come back to a restarted server at the same moment."""
OUTBOUND_BYTES_MAX = 8 * 1024 * 1024
PENDING_MSGS_MAX = 65_536
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""Of each subscription. Far above what our own admission lets wait: nats-py drops silently what
is over these, so they must never be reached first.
"""
CLOSE_TIMEOUT_S = 5.0
LOG_EVERY_S = 10.0
"""A lost server raises one error for each attempt; one line in this many seconds is enough."""


class BusLost(Exception):
    """There is no connection to NATS, and none can be had in time."""


class Refusal(Exception):
    """The server refused a subscription; the text is the server's."""


def guarded_callback(
    callback: Callable[..., Awaitable[None] | None],
) -> Callable[..., Awaitable[None]]:
    """Wrap a callback of nats-py so that nothing but a cancellation leaves it."""

    async def guarded(*arguments: Any) -> None:
        try:
            result = callback(*arguments)
            if result is not None:
                await result
        except Exception:  # noqa: BLE001 - see the module's docstring
            _log.exception("a bus callback failed: a bug")

    return guarded


class Connection:
    """One connection. Publishing never blocks on the server, and drops while there is none."""

    def __init__(
        self, settings: Settings, *, on_unreadable: Callable[[], None] = lambda: None
    ) -> None:
        self._settings = settings
        self._client = TolerantClient(on_unreadable)
        self._closing = False
        self._refusals: list[str] = []
        self._lost_timer: asyncio.TimerHandle | None = None
        self._logged_s = 0.0
        self._loop = asyncio.get_running_loop()
        self.lost = asyncio.Event()
        """Set when the connection is gone for good, or for ``bus_lost_s``."""
        self.reconnects = 0

    @property
    def connected(self) -> bool:
        """True while there is a server to publish to."""
        return bool(self._client.is_connected)

    @property
    def payload_bytes_max(self) -> int:
        """Largest message the server takes, headers included."""
        return int(self._client.max_payload)

    async def open(self) -> None:
        """Connect; raises :class:`BusLost` when no server answers within ``bus_lost_s``."""
        settings = self._settings
        try:
            async with asyncio.timeout(settings.bus_lost_s):
                await self._client.connect(
                    servers=servers(settings),
                    name=f"semif-actor {settings.instance}",
                    error_cb=guarded_callback(self._on_error),
                    disconnected_cb=guarded_callback(self._on_disconnected),
                    closed_cb=guarded_callback(self._on_closed),
                    discovered_server_cb=guarded_callback(self._on_discovered),
                    reconnected_cb=guarded_callback(self._on_reconnected),
                    lame_duck_mode_cb=guarded_callback(self._on_lame_duck),
                    reconnect_to_server_handler=_choose_server,
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    connect_timeout=CONNECT_TIMEOUT_S,
                    ping_interval=PING_INTERVAL_S,
                    max_outstanding_pings=PINGS_OUTSTANDING_MAX,
                    drain_timeout=CLOSE_TIMEOUT_S,
                    pending_size=OUTBOUND_BYTES_MAX,
                    **credentials(settings),
                )
        except TimeoutError:
            raise BusLost(f"no server answered within {settings.bus_lost_s:g} s") from None
        except Exception as error:  # noqa: BLE001 - whatever it is, there will be no connection
            # A broken URL or key file; what the network does is retried inside connect(). The type
            # alone: the text of a URL parser may hold the password.
            raise BusLost(
                f"the URL or the credentials cannot be used ({type(error).__name__})"
            ) from None

    async def publish(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None
    ) -> bool:
        """Publish now or not at all; False when it was dropped.

        nats-py would keep it for the next connection: a late reply to an inbox that may by then
        be another request's, a stale heartbeat that says the actor is well.
        """
        if not self.connected:
            return False
        try:
            await self._client.publish(subject, payload, headers=headers)
        except Exception as error:  # noqa: BLE001 - closed or full between the check and here
            _log.warning("publish failed", subject=subject, error=type(error).__name__)
            return False
        return True

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None] | None], *, queue: str = ""
    ) -> Subscription:
        """Subscribe; whether the server allows it is known after :meth:`confirm`."""
        return await self._client.subscribe(
            subject,
            queue=queue,
            cb=guarded_callback(callback),
            pending_msgs_limit=PENDING_MSGS_MAX,
            pending_bytes_limit=PENDING_BYTES_MAX,
        )

    async def barrier(self) -> None:
        """Wait until the server has processed everything sent before.

        Twice: nats-py writes the PING of a flush ahead of commands that still sit in its buffer,
        so one flush proves nothing; the second PING is behind them.
        """
        await self._client.flush()
        await self._client.flush()

    async def confirm(self) -> None:
        """Make sure that the server took every subscription; raises :class:`Refusal`.

        A denied SUB raises nothing; the server's error comes before the PONG of the barrier.
        """
        await self.barrier()
        if self._refusals:
            raise Refusal("; ".join(self._refusals))

    async def end(self, subscription: Subscription) -> None:
        """Unsubscribe without losing a message that the server has already sent.

        ``Subscription.drain`` alone would: its flush overtakes its UNSUB (see :meth:`barrier`),
        and what arrives in between finds no subscription and is dropped.
        """
        if not self.connected:
            return  # the server forgot the subscription with the connection
        try:
            await self._client._send_unsubscribe(subscription._id)  # noqa: SLF001 - no public way
            await self.barrier()
            await subscription.drain()
        except Exception as error:  # noqa: BLE001 - the connection broke: the same as above
            _log.warning("unsubscribe failed", error=type(error).__name__)

    async def close(self) -> None:
        """Send what is buffered and close; gives up on a server that does not read."""
        self._closing = True
        if self._lost_timer:
            self._lost_timer.cancel()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self.connected:
                    await self.barrier()
                await self._client.close()
        except Exception as error:  # noqa: BLE001 - the process ends whatever happens here
            _log.warning("close failed", error=type(error).__name__)

    async def _on_error(self, error: Exception) -> None:
        text = str(error)
        if "permissions violation" in text.lower():
            self._refusals.append(text)
        now_s = self._loop.time()
        if now_s - self._logged_s >= LOG_EVERY_S or not self._logged_s:
            self._logged_s = now_s
            _log.warning("bus error", error=type(error).__name__, text=text)

    async def _on_disconnected(self) -> None:
        if self._closing:
            return
        _log.warning("bus disconnected", gives_up_in_s=self._settings.bus_lost_s)
        if self._lost_timer is None:
            self._lost_timer = self._loop.call_later(self._settings.bus_lost_s, self.lost.set)

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        if self._lost_timer:
            self._lost_timer.cancel()
            self._lost_timer = None
        _log.info("bus reconnected", reconnects=self.reconnects)

    async def _on_closed(self) -> None:
        # Without our asking this is final, whatever max_reconnect_attempts says: expired
        # credentials and "maximum connections exceeded" end here (nats.py issue 1019).
        if not self._closing:
            _log.error("bus connection closed for good")
            self.lost.set()

    async def _on_discovered(self) -> None:
        _log.info("bus server discovered")

    async def _on_lame_duck(self) -> None:
        _log.warning("bus server enters lame duck mode")


def _choose_server(servers: list[Any], _info: dict[str, Any]) -> tuple[Any, float]:
    """Pick a server and a delay. The delay replaces nats-py's own, so it is never 0."""
    return random.choice(servers), random.uniform(*RECONNECT_DELAY_S)  # noqa: S311 - a spread
