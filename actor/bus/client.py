"""The other side of the bus: what ``score``, ``ping`` and the demo need of a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import nats.errors
from nats.aio.client import Client

from actor.bus.connection import CONNECT_TIMEOUT_S, guarded_callback
from actor.bus.credentials import credentials, servers
from actor.settings import Settings
from schemas.codec import codec_for
from schemas.errors import ErrorBody, ErrorReply
from schemas.health import Heartbeat
from schemas.subjects import ERROR_CODE_HEADER, TIMEOUT_HEADER, Subjects

__all__ = ["BusClient", "NoAnswer", "Response", "open_client"]

GRACE_S = 2.0
"""Seconds on top of the deadline sent along: the actor answers at it, the answer must travel."""


class NoAnswer(Exception):
    """No actor answered; the text says why."""


@dataclass(frozen=True, slots=True)
class Response:
    """A reply: its bytes, and the error in it, if it is one."""

    payload: bytes
    error: ErrorBody | None


class BusClient:
    """A connection that asks and watches."""

    def __init__(self, client: Client, subjects: Subjects) -> None:
        self._client = client
        self._subjects = subjects

    async def ask(self, payload: bytes, *, shared: bool = False, timeout_s: float) -> Response:
        """Send a JSON request and wait for its reply; raises :class:`NoAnswer`."""
        subject = self._subjects.score_shared if shared else self._subjects.score
        headers = {TIMEOUT_HEADER: str(round(timeout_s * 1000))}
        try:
            message = await self._client.request(
                subject, payload, timeout=timeout_s + GRACE_S, headers=headers
            )
        except nats.errors.NoRespondersError:
            raise NoAnswer(f"nobody serves {subject}: no actor is ready") from None
        except nats.errors.TimeoutError:
            raise NoAnswer(f"no reply within {timeout_s + GRACE_S:g} s") from None
        except nats.errors.MaxPayloadError:
            raise NoAnswer("the request is larger than the server carries") from None
        error = None
        if ERROR_CODE_HEADER in (message.headers or {}):
            error = codec_for(None).decode(message.data, ErrorReply).error
        return Response(message.data, error)

    async def heartbeats(self, instance: str) -> AsyncIterator[Heartbeat]:
        """Give the heartbeats of ``instance`` (``*``: of all) from now on."""
        subscription = await self._client.subscribe(self._subjects.health(instance))
        await self._client.flush()
        await self._client.flush()  # the first one overtakes the SUB
        async for message in subscription.messages:
            yield codec_for(None).decode(message.data, Heartbeat)

    async def next_heartbeat(self, instance: str, *, timeout_s: float) -> Heartbeat:
        """Give the next heartbeat of ``instance``; raises :class:`NoAnswer`."""
        try:
            async with asyncio.timeout(timeout_s):
                async for heartbeat in self.heartbeats(instance):
                    return heartbeat
        except TimeoutError:
            pass
        raise NoAnswer(f"no heartbeat of {instance} within {timeout_s:g} s")


@asynccontextmanager
async def open_client(settings: Settings, name: str) -> AsyncIterator[BusClient]:
    """Connect, or raise :class:`NoAnswer` at once: a person or a probe waits."""
    client = Client()
    errors: list[Exception] = []
    try:
        await client.connect(
            servers=servers(settings),
            name=name,
            error_cb=guarded_callback(errors.append),
            # allow_reconnect does not bound the first connect, only these two do.
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_TIMEOUT_S,
            **credentials(settings),
        )
    except Exception as error:  # noqa: BLE001 - nats-py and ssl raise a dozen kinds here
        cause = errors[-1] if errors else error
        reason = str(cause) or type(cause).__name__
        raise NoAnswer(f"no connection to NATS: {reason}") from None
    try:
        yield BusClient(client, Subjects(settings.subject_prefix))
    finally:
        await client.close()
