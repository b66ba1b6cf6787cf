"""The actor's connection: every option explicit, every callback wrapped.

nats-py's defaults are wrong for a service in several places, and an exception out of one of its
callbacks ends the read loop while ``is_connected`` stays true (nats.py issue 204). So no callback
here raises, and what they learn becomes state that the service awaits.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.credentials import BadCredentials, credentials, servers, wants_tls
from actor.bus.lame_duck import move
from actor.bus.tolerant_client import CredentialsRefused, TolerantClient, is_refused
from actor.bus.watchdog import ping_interval_s, watch
from actor.settings import Settings

__all__ = ["BusLost", "Connection", "Refusal", "guarded_callback", "wire_bytes"]

_log = structlog.get_logger()

CONNECT_TIMEOUT_S = 2
PINGS_OUTSTANDING_MAX = 2
RECONNECT_DELAY_MAX_S = 5.0
RECONNECTS_A_LOSS = 6
"""Reconnects that fit into ``bus_lost_s``, however short it is."""
REFUSALS_MAX = 2
"""Reconnects in a row whose credentials the server refuses: one may be a server that is just being
given its users.
"""
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
_REFUSED_SUBJECT = re.compile(r'for subscription to "([^"]*)"')
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


def wire_bytes(payload: bytes, headers: dict[str, str] | None) -> int:
    """Give the bytes that the server compares with its ``max_payload``: headers count."""
    if headers is None:
        return len(payload)
    lines = sum(
        len(f"{key}: {text.strip()}\r\n".encode())
        for name, text in headers.items()
        if (key := name.strip())
    )
    return len(b"NATS/1.0\r\n") + lines + len(b"\r\n") + len(payload)


class Connection:
    """One connection. Publishing never blocks on the server, and drops while there is none."""

    def __init__(
        self, settings: Settings, *, on_unreadable: Callable[[], None] = lambda: None
    ) -> None:
        self._settings = settings
        self._client = TolerantClient(on_unreadable, require_tls=wants_tls(settings))
        self._options: dict[str, Any] = {}
        self._closing = False
        self._unconfirmed: set[str] = set()
        self._confirmed: set[str] = set()
        self._refusals: list[str] = []
        self._credentials_refused = 0
        self._watching: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._logged_s: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        self.lost = asyncio.Event()
        """Set when the connection is gone for good, or for ``bus_lost_s``."""
        self.lost_reason = ""
        self.on_reconnect: list[Callable[[], None]] = []
        """Called after a reconnect and after a move: what was asked of a server is gone with it."""
        self.reconnects = 0
        self.moves = 0
        """Times that a server in lame duck mode was left for another without a break."""
        self.dropped_by_client = 0
        """Messages that nats-py dropped before our callback saw them: a bug in our limits."""
        self.dropped_unsent = 0
        """Messages published, and still unsent when the connection broke."""
        self.publishes_refused = 0
        """Messages that the server did not let us publish."""

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
        watching = watch(self._client, bus_lost_s=settings.bus_lost_s, lose=self._lose)
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
                self._log_now_and_then("a message is larger than the server takes", size=size)
                return False
            if client.unsent_bytes + size > OUTBOUND_BYTES_MAX:
                self._log_now_and_then("the server reads too slowly", unsent=client.unsent_bytes)
                return False
            await client.publish(subject, payload, reply, headers)
        except Exception as error:  # noqa: BLE001 - closed between the check and here, a bad subject
            self._log_now_and_then("publish failed", error=type(error).__name__)
            return False
        return True

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None] | None], *, queue: str = ""
    ) -> Subscription:
        """Subscribe; whether the server allows it is known after :meth:`confirm`."""
        await self._moved()
        if subject.lower() not in self._confirmed:  # the parser lowers the case of errors
            self._unconfirmed.add(subject.lower())
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
                    async with asyncio.timeout(self._delay_s()):
                        await self.lost.wait()
                continue
            if self._refusals:
                raise Refusal("; ".join(self._refusals))
            self._confirmed |= self._unconfirmed
            self._unconfirmed.clear()
            return
        raise BusLost(self.lost_reason)

    async def end(self, subscription: Subscription) -> None:
        """Unsubscribe without losing a message that the server has already sent.

        ``Subscription.drain`` alone would: its flush overtakes its UNSUB (see :meth:`barrier`),
        and what arrives in between finds no subscription and is dropped.
        """
        await self._moved()
        try:
            await self._client.announce_end(subscription)
            if self.connected and not self.lost.is_set():
                await self.barrier()
        except Exception as error:  # noqa: BLE001 - the server forgets it with the connection
            _log.warning("unsubscribe failed", error=type(error).__name__)
        await self._client.end(subscription)

    async def close(self) -> None:
        """Send what is buffered and close; gives up on a server that does not read."""
        self._closing = True
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
            "error_cb": guarded_callback(self._on_error),
            "disconnected_cb": guarded_callback(self._on_disconnected),
            "closed_cb": guarded_callback(self._on_closed),
            "discovered_server_cb": guarded_callback(self._on_discovered),
            "reconnected_cb": guarded_callback(self._on_reconnected),
            "lame_duck_mode_cb": guarded_callback(self._on_lame_duck),
            "reconnect_to_server_handler": self._choose_server,
            "allow_reconnect": True,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": self._delay_s(),
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

    def _lose(self, reason: str) -> None:
        if not self._closing and not self.lost.is_set():
            _log.error("bus lost", reason=reason)
            self.lost_reason = reason
            self.lost.set()

    def _on_watchdog_end(self, watching: asyncio.Task[None]) -> None:
        if not watching.cancelled() and watching.exception() is not None:
            self._lose(f"the watchdog failed, a bug: {type(watching.exception()).__name__}")

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            self.dropped_by_client += 1
        text = str(error)
        words = text.lower()
        if "permissions violation for publish" in words:
            self.publishes_refused += 1
        elif "permissions violation" in words:
            refused = _REFUSED_SUBJECT.search(words)
            if refused and refused[1] in self._unconfirmed:
                self._refusals.append(text)
            else:  # deaf on one subject and well by its heartbeats: worse than an actor that ends
                self._lose(f"the server took back a subscription: {text}")
        elif is_refused(text):
            self._credentials_refused += 1
            if self._credentials_refused >= REFUSALS_MAX:
                self._lose(f"the server refuses the credentials: {text}")
        self._log_now_and_then("bus error", error=type(error).__name__, text=text)

    def _log_now_and_then(self, event: str, **facts: Any) -> None:
        now_s = self._loop.time()
        if now_s - self._logged_s.get(event, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[event] = now_s
            _log.warning(event, **facts)

    def _on_disconnected(self) -> None:
        unsent = self._client.forget_unsent()
        self.dropped_unsent += unsent
        if not self._closing:
            gives_up_in_s = self._settings.bus_lost_s
            _log.warning("bus disconnected", gives_up_in_s=gives_up_in_s, unsent=unsent)

    def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._credentials_refused = 0
        _log.info("bus reconnected", reconnects=self.reconnects)
        self._tell_of_reconnect()

    def _tell_of_reconnect(self) -> None:
        for told in list(self.on_reconnect):
            try:
                told()
            except Exception:  # noqa: BLE001 - see the module's docstring; the others must know too
                _log.exception("a reconnect's callback failed: a bug")

    def _on_closed(self) -> None:
        # Without our asking this is final, whatever max_reconnect_attempts says: expired
        # credentials and "maximum connections exceeded" end here (nats.py issue 1019).
        self._lose(f"the server closed the connection for good: {self._client.last_error}")

    def _on_discovered(self) -> None:
        _log.info("bus server discovered")

    def _on_lame_duck(self) -> None:
        """Called by the read loop, which must go on: the move needs it."""
        if self._closing or (self._moving and not self._moving.done()):
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
            self._tell_of_reconnect()
        _log.info("bus moved" if moved else "no other bus server to move to", moves=self.moves)

    def _choose_server(self, servers: list[Any], _info: dict[str, Any]) -> tuple[Any, float]:
        """Pick a server and a delay. The delay replaces nats-py's own, so it is never 0."""
        return random.choice(servers), self._delay_s()  # noqa: S311 - a spread

    def _delay_s(self) -> float:
        """Spread, so that many clients do not come back to a restarted server at one moment."""
        most_s = min(RECONNECT_DELAY_MAX_S, self._settings.bus_lost_s / RECONNECTS_A_LOSS)
        return random.uniform(most_s / 10, most_s)  # noqa: S311
