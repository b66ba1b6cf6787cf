"""What the client library tells of its connection: counted, logged now and then, or the end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import structlog

from actor.bus.guarded import guarded_callback
from actor.bus.tolerant_client import TolerantClient, is_refused

__all__ = ["BusLost", "Incidents", "Refusal"]

_log = structlog.get_logger()

REFUSALS_MAX = 2
"""Reconnects in a row whose credentials the server refuses: one may be a server that is just being
given its users.
"""
LOG_EVERY_S = 10.0
"""A lost server raises one error for each attempt; one line in this many seconds is enough."""
_REFUSED_SUBJECT = re.compile(r'for subscription to "([^"]*)"')


class BusLost(Exception):
    """There is no connection to NATS, and none can be had in time."""


class Refusal(Exception):
    """The server refused a subscription; the text is the server's."""


class Incidents:
    """The owner of what became of a connection. Everything is called on the event loop."""

    def __init__(self, client: TolerantClient, *, gives_up_in_s: float) -> None:
        self._client = client
        self._gives_up_in_s = gives_up_in_s
        self._unconfirmed: set[str] = set()
        self._confirmed: set[str] = set()
        self._refusals: list[str] = []
        self._credentials_refused = 0
        self._logged_s: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        self.closing = False
        """We end the connection: nothing that follows is an incident."""
        self.lost = asyncio.Event()
        """Set when the connection is gone for good, or for ``bus_lost_s``."""
        self.lost_reason = ""
        self.on_reconnect: list[Callable[[], None]] = []
        """Called after a reconnect and after a move: what was asked of a server is gone with it."""
        self.reconnects = 0
        self.dropped_by_client = 0
        """Messages that nats-py dropped before our callback saw them: a bug in our limits."""
        self.dropped_unsent = 0
        """Messages published, and still unsent when the connection broke."""
        self.publishes_refused = 0
        """Messages that the server did not let us publish."""

    def callbacks(self) -> dict[str, Callable[..., Awaitable[None]]]:
        """Give nats-py's options that name a callback, but for lame duck mode's."""
        return {
            "error_cb": guarded_callback(self._on_error),
            "disconnected_cb": guarded_callback(self._on_disconnected),
            "closed_cb": guarded_callback(self._on_closed),
            "discovered_server_cb": guarded_callback(self._on_discovered),
            "reconnected_cb": guarded_callback(self._on_reconnected),
        }

    def expect(self, subject: str) -> None:
        """Remember a subscription that the server may still refuse."""
        if subject.lower() not in self._confirmed:  # the parser lowers the case of errors
            self._unconfirmed.add(subject.lower())

    def confirm(self) -> None:
        """Take the silence of the server for its consent; raises :class:`Refusal`.

        From here on a refusal of these subjects is a loss.
        """
        if self._refusals:
            raise Refusal("; ".join(self._refusals))
        self._confirmed |= self._unconfirmed
        self._unconfirmed.clear()

    def lose(self, reason: str) -> None:
        """Declare the connection gone for good."""
        if not self.closing and not self.lost.is_set():
            _log.error("bus lost", reason=reason)
            self.lost_reason = reason
            self.lost.set()

    def warn(self, event: str, **facts: Any) -> None:
        """Write a warning that may come many times a second."""
        now_s = self._loop.time()
        if now_s - self._logged_s.get(event, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[event] = now_s
            _log.warning(event, **facts)

    def tell_of_reconnect(self) -> None:
        """Call who wants to know that the server is another one."""
        for told in list(self.on_reconnect):
            try:
                told()
            except Exception:  # noqa: BLE001 - the others must know too
                _log.exception("a reconnect's callback failed: a bug")

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
                self.lose(f"the server took back a subscription: {text}")
        elif is_refused(text):
            self._credentials_refused += 1
            if self._credentials_refused >= REFUSALS_MAX:
                self.lose(f"the server refuses the credentials: {text}")
        self.warn("bus error", error=type(error).__name__, text=text)

    def _on_disconnected(self) -> None:
        unsent = self._client.forget_unsent()
        self.dropped_unsent += unsent
        if not self.closing:
            _log.warning("bus disconnected", gives_up_in_s=self._gives_up_in_s, unsent=unsent)

    def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._credentials_refused = 0
        _log.info("bus reconnected", reconnects=self.reconnects)
        self.tell_of_reconnect()

    def _on_closed(self) -> None:
        # Without our asking this is final, whatever max_reconnect_attempts says: expired
        # credentials and "maximum connections exceeded" end here (nats.py issue 1019).
        self.lose(f"the server closed the connection for good: {self._client.last_error}")

    def _on_discovered(self) -> None:
        _log.info("bus server discovered")
