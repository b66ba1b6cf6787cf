"""Callers with connections of their own: requests at a steady rate, and every reply to each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from actors import decision
from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas.subjects import ERROR_CODE_HEADER, TIMEOUT_HEADER, Subjects

TICK_S = 0.005
NO_RESPONDERS = "no responders"
ANSWERED = "answered"
WRONG = "another's answer"


class Break(NamedTuple):
    """A connection that ended."""

    at_s: float
    node: str
    """Name of the server it was to."""


@dataclass(slots=True)
class Request:
    """One request, and all that came back."""

    number: int
    caller: int
    sent_s: float
    """Seconds since 1970."""
    replies: list[str] = field(default_factory=list)
    replied_s: float = 0.0
    """When the first came."""


class Caller:
    """One connection that asks and, when it breaks, is made again, as callers' connections are."""

    def __init__(self, number: int, nodes: dict[int, str], requests: list[Request]) -> None:
        """``nodes`` are names by port; ``requests`` is shared by all callers."""
        self.number = number
        self._nodes = nodes
        self._requests = requests
        self._client = Client()
        self._inbox = ""
        self._node = ""
        self.breaks: list[Break] = []
        self._headers: dict[str, str] = {}

    async def open(self, urls: Sequence[str], *, timeout_s: float) -> None:
        """Connect to the first of ``urls``, or another, and listen for replies."""
        self._headers = {TIMEOUT_HEADER: str(round(timeout_s * 1000))}
        await self._client.connect(
            servers=list(urls),
            dont_randomize=True,
            name=f"caller {self.number}",
            reconnect_time_wait=0.1,
            max_reconnect_attempts=-1,
            connect_timeout=1,
            ping_interval=1,
            max_outstanding_pings=2,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_connected,
        )
        await self._on_connected()
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply)
        await self._client.flush()
        await self._client.flush()  # the first one overtakes the SUB

    async def ask(self) -> bool:
        """Send a request; False when there is no server to send it to."""
        if not self._client.is_connected:
            return False
        number = len(self._requests)
        self._requests.append(Request(number, self.number, time.time()))
        payload = json.dumps(decision(id=str(number))).encode()
        subject = Subjects("semif.v1").score
        await self._client.publish(subject, payload, f"{self._inbox}.{number}", self._headers)
        return True

    async def close(self) -> None:
        """Ask no more."""
        await self._client.close()

    async def _on_reply(self, message: Msg) -> None:
        number = int(message.subject.rpartition(".")[2])
        request = self._requests[number]
        request.replied_s = request.replied_s or time.time()
        headers = message.headers or {}
        if ERROR_CODE_HEADER in headers:
            request.replies.append(json.loads(message.data)["error"]["code"])
        elif "Status" in headers:
            request.replies.append(NO_RESPONDERS)
        else:
            own = json.loads(message.data)["id"] == str(number)
            request.replies.append(ANSWERED if own else WRONG)

    async def _on_connected(self) -> None:
        url = self._client.connected_url
        self._node = self._nodes.get(url.port, "") if url else ""

    async def _on_disconnected(self) -> None:
        self.breaks.append(Break(time.time(), self._node))

    async def _on_error(self, _error: Exception) -> None:
        """Say nothing: the breaks are the errors that count."""


class Load:
    """Requests of all callers in turn, at a rate that a flood can raise."""

    def __init__(self, callers: Sequence[Caller], per_s: float) -> None:
        self._callers = callers
        self._per_s = per_s
        self.times = 1.0
        """The rate, in multiples of the steady one."""
        self.unsent = 0
        """Requests that no caller had a connection for."""

    async def run(self) -> None:
        """Ask until cancelled."""
        due, last_s, turn = 0.0, time.monotonic(), 0
        while True:
            now_s = time.monotonic()
            due += (now_s - last_s) * self._per_s * self.times
            last_s = now_s
            while due >= 1:
                due -= 1
                turn += 1
                await self._ask(turn)
            await asyncio.sleep(TICK_S)

    async def _ask(self, turn: int) -> None:
        count = len(self._callers)
        for step in range(count):
            if await self._callers[(turn + step) % count].ask():
                return
        self.unsent += 1


@asynccontextmanager
async def callers_at(
    urls: Sequence[str], nodes: dict[int, str], requests: list[Request], *, timeout_s: float
) -> AsyncIterator[list[Caller]]:
    """Give a caller at each node."""
    callers = [Caller(number, nodes, requests) for number in range(len(urls))]
    try:
        for number, caller in enumerate(callers):
            await caller.open([*urls[number:], *urls[:number]], timeout_s=timeout_s)
        yield callers
    finally:
        for caller in callers:
            await caller.close()
