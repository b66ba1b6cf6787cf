"""Requests in numbers, and every reply to them counted.

nats-py's own ``request`` would not do: it forgets a request that timed out, and drops a second
reply unseen. Here each request has a reply subject of its own under one subscription.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas.subjects import ERROR_CODE_HEADER

__all__ = ["ANSWERED", "Traffic", "rate", "traffic_to"]

ANSWERED = 200
TICK_S = 0.002
"""Between two looks at what is due: far below any latency that is measured."""


class Traffic:
    """Requests to one subject, as long as one measurement lasts; clock: ``time.perf_counter``."""

    def __init__(self, client: Client, subject: str, payloads: Sequence[bytes]) -> None:
        self._client = client
        self._subject = subject
        self._payloads = payloads
        self._inbox = client.new_inbox()
        self._go_on_until_s = 0.0
        self._news = asyncio.Event()
        self.sent_s = array("d")
        self.replied_s = array("d")
        """When the first reply to each request came; 0 while there is none."""
        self.status = array("H")
        """The error's code, or 200."""
        self.replies = 0
        """All of them; more than requests, when one was answered twice."""
        self._answered = 0

    async def open(self) -> None:
        """Listen for replies."""
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply)
        await self._client.flush()
        await self._client.flush()  # the first one overtakes the SUB

    @property
    def unanswered(self) -> int:
        """Requests without a reply."""
        return len(self.sent_s) - self._answered

    def latencies_s(self, status: int) -> list[float]:
        """Give the seconds from request to reply of those that were answered so."""
        times = zip(self.sent_s, self.replied_s, self.status, strict=True)
        return [replied - sent for sent, replied, code in times if replied and code == status]

    def statuses(self) -> Counter[int]:
        """Count the replies by code."""
        answered = zip(self.replied_s, self.status, strict=True)
        return Counter(code for replied, code in answered if replied)

    def answered_per_s(self, start_s: float, end_s: float) -> float:
        """Give the rate of results (no errors) in a stretch of time."""
        times = zip(self.replied_s, self.status, strict=True)
        return rate([at for at, code in times if at and code == ANSWERED], start_s, end_s)

    async def closed_loop(self, *, in_flight: int, seconds: float) -> tuple[float, float]:
        """Keep so many requests in flight; give the start and the end of the time measured."""
        start_s = time.perf_counter()
        self._go_on_until_s = start_s + seconds
        for _ in range(in_flight):
            await self._send()
        await asyncio.sleep(seconds)
        return start_s, self._go_on_until_s

    async def one_at_a_time(self, count: int, *, within_s: float) -> None:
        """Send each request when the reply to the one before has come."""
        for _ in range(count):
            await self._send()
            await self.settle(within_s=within_s)

    async def open_loop(self, *, per_s: float, seconds: float) -> tuple[float, float]:
        """Send at a rate, whatever comes back; give the start and the end of the time measured."""
        start_s, sent = time.perf_counter(), 0
        while (now_s := time.perf_counter()) < start_s + seconds:
            due = int((now_s - start_s) * per_s)
            for _ in range(due - sent):
                await self._send()
            sent = max(due, sent)
            await asyncio.sleep(TICK_S)
        return start_s, start_s + seconds

    async def settle(self, *, within_s: float) -> None:
        """Wait until every request has a reply, or for the time to pass."""
        try:
            async with asyncio.timeout(within_s):
                while self.unanswered:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return  # what is missing is counted by ``unanswered``

    async def _send(self) -> None:
        number = len(self.sent_s)
        self.replied_s.append(0.0)
        self.status.append(0)
        self.sent_s.append(time.perf_counter())
        payload = self._payloads[number % len(self._payloads)]
        await self._client.publish(self._subject, payload, reply=f"{self._inbox}.{number}")

    async def _on_reply(self, message: Msg) -> None:
        now_s = time.perf_counter()
        number = int(message.subject.rpartition(".")[2])
        self.replies += 1
        if not self.replied_s[number]:
            self.replied_s[number] = now_s
            self._answered += 1
            # nats-server's "no responders" has a status and none of our headers.
            headers = message.headers or {}
            code = headers.get(ERROR_CODE_HEADER) or headers.get("Status") or ANSWERED
            self.status[number] = int(code)
        if now_s < self._go_on_until_s:
            await self._send()
        self._news.set()


def rate(times_s: Sequence[float], start_s: float, end_s: float) -> float:
    """Give the events per second between the first after ``start_s`` and the first after ``end_s``.

    Results come a whole batch at once, seconds apart: a stretch with fixed ends would cut one, and
    be wrong by as much as a batch. When nothing came after the end, it is the end.
    """
    ordered = sorted(times_s)
    first, last = bisect_left(ordered, start_s), bisect_left(ordered, end_s)
    if first == last:
        return 0.0
    until_s = ordered[last] if last < len(ordered) else end_s
    return (last - first) / (until_s - ordered[first])


@asynccontextmanager
async def traffic_to(url: str, subject: str, payloads: Sequence[bytes]) -> AsyncIterator[Traffic]:
    """Give traffic on a connection of its own."""
    client = await nats.connect(url, name="semif-actor bench", pending_size=64 * 1024 * 1024)
    try:
        traffic = Traffic(client, subject, payloads)
        await traffic.open()
        yield traffic
    finally:
        await client.close()
