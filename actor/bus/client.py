"""The other side of the bus: what ``score``, ``ping`` and the demo need of a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor.bus.connection import CONNECT_TIMEOUT_S
from actor.bus.credentials import credentials, servers, wants_tls
from actor.bus.guarded import guarded_callback
from actor.bus.tolerant_client import TolerantClient
from actor.settings import Settings
from actor.wire_size import wire_bytes
from schemas.codec import codec_for
from schemas.decision import Refused, Scored, ScoreReply, SharedReply
from schemas.errors import ErrorBody, ErrorReply
from schemas.health import Heartbeat
from schemas.subjects import ERROR_CODE_HEADER, PRIORITY_HEADER, TIMEOUT_HEADER, Subjects

__all__ = [
    "BusClient",
    "NoAnswer",
    "NoReply",
    "NoResponders",
    "Response",
    "open_client",
    "results_of",
]

UNREADABLE = (msgspec.MsgspecError, RecursionError)
"""What decoding raises; RecursionError is msgspec's own guard against deep nesting."""
GRACE_S = 2.0
"""Seconds on top of the deadline sent along: the actor answers at it, the answer must travel."""


class NoAnswer(Exception):
    """No actor answered; the text says why."""


class NoResponders(NoAnswer):
    """Nobody listens on the subject."""


class NoReply(NoAnswer):
    """Somebody listens, and said nothing in time."""


@dataclass(frozen=True, slots=True)
class Response:
    """A reply: its bytes, and the answer or the error in them."""

    payload: bytes
    answer: ScoreReply | SharedReply | None
    error: ErrorBody | None


def results_of(reply: ScoreReply | SharedReply) -> tuple[ScoreReply | Scored | Refused, ...]:
    """Give what was found for each decision, in the order asked."""
    return reply.results if isinstance(reply, SharedReply) else (reply,)


class BusClient:
    """A connection that asks and watches."""

    def __init__(self, client: Client, subjects: Subjects) -> None:
        self._client = client
        self._subjects = subjects
        self.unreadable = 0
        """Messages on health subjects that are no heartbeats."""

    @property
    def payload_bytes_max(self) -> int:
        """Largest message the server takes, headers included."""
        return int(self._client.max_payload)

    async def ask(
        self, payload: bytes, *, shared: bool = False, timeout_s: float, background: bool = False
    ) -> Response:
        """Send a JSON request and wait for its reply; raises :class:`NoAnswer`."""
        subject = self._subjects.score_shared if shared else self._subjects.score
        headers = {TIMEOUT_HEADER: str(round(timeout_s * 1000))}
        if background:
            headers[PRIORITY_HEADER] = "background"
        try:
            message = await self.request(subject, payload, headers, timeout_s=timeout_s + GRACE_S)
        except NoResponders:
            raise NoAnswer(f"nobody serves {subject}: no actor is ready") from None
        try:
            if ERROR_CODE_HEADER in (message.headers or {}):
                refused = codec_for(None).decode(message.data, ErrorReply).error
                return Response(message.data, None, refused)
            return Response(message.data, _read_answer(message.data, shared=shared), None)
        except UNREADABLE:
            raise NoAnswer(
                f"the reply cannot be read; look who else answers on {subject}, or whether the "
                "actor is of another version"
            ) from None

    async def request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, *, timeout_s: float
    ) -> Msg:
        """Send a request of any kind; raises :class:`NoAnswer`, or its :class:`NoResponders`."""
        if wire_bytes(payload, headers) > self.payload_bytes_max:
            # nats-py counts the payload alone, and the server ends the connection.
            raise NoAnswer("the request is larger than the server carries")
        try:
            return await self._client.request(subject, payload, timeout=timeout_s, headers=headers)
        except nats.errors.NoRespondersError:
            raise NoResponders(f"nobody serves {subject}") from None
        except nats.errors.TimeoutError:
            raise NoReply(f"no reply within {timeout_s:g} s") from None
        except nats.errors.Error as error:
            raise NoAnswer(f"the connection to NATS broke: {error}") from None

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str] | None) -> None:
        """Publish to whoever listens; raises :class:`NoAnswer` when it cannot go out."""
        if wire_bytes(payload, headers) > self.payload_bytes_max:
            raise NoAnswer("the message is larger than the server carries")
        try:
            await self._client.publish(subject, payload, headers=headers)
        except nats.errors.Error as error:
            raise NoAnswer(f"the connection to NATS broke: {error}") from None

    async def subscribe(self, subject: str) -> Subscription:
        """Subscribe, and be sure that the server knows; raises :class:`NoAnswer`."""
        try:
            subscription = await self._client.subscribe(subject)
        except nats.errors.Error as error:
            raise NoAnswer(f"the connection to NATS broke: {error}") from None
        await self.barrier()
        return subscription

    async def next_of(self, subscription: Subscription, *, within_s: float) -> Msg:
        """Give the next message; raises :class:`NoAnswer`."""
        try:
            return await subscription.next_msg(timeout=within_s)
        except nats.errors.Error:
            raise NoAnswer(
                f"nothing came on {subscription.subject} within {within_s:g} s"
            ) from None

    async def barrier(self) -> None:
        """Wait until the server has taken what was published; raises :class:`NoAnswer`."""
        try:
            await self._client.flush()
            await self._client.flush()  # the first one overtakes what was sent before it
        except nats.errors.Error as error:
            raise NoAnswer(f"the connection to NATS broke: {error}") from None

    async def heartbeats(self, instance: str) -> AsyncIterator[Heartbeat]:
        """Give the heartbeats of ``instance`` (``*``: of all) from now on.

        What is no heartbeat is counted and passed over: anybody may publish there. Raises
        :class:`NoAnswer` when the connection is gone.
        """
        subscription = await self.subscribe(self._subjects.health(instance))
        async for message in subscription.messages:
            try:
                heartbeat = codec_for(None).decode(message.data, Heartbeat)
            except UNREADABLE:
                self.unreadable += 1
                continue
            yield heartbeat
        raise NoAnswer("the connection to NATS broke")

    async def next_heartbeat(self, instance: str, *, timeout_s: float) -> Heartbeat:
        """Give the next heartbeat of ``instance``; raises :class:`NoAnswer`."""
        try:
            async with asyncio.timeout(timeout_s):
                async for heartbeat in self.heartbeats(instance):
                    return heartbeat
        except TimeoutError:
            pass
        who = "any actor" if instance == "*" else instance
        text = f"no heartbeat of {who} within {timeout_s:g} s"
        if self.unreadable:
            text += f"; messages there that cannot be read: {self.unreadable}"
        raise NoAnswer(text)


def _read_answer(payload: bytes, *, shared: bool) -> ScoreReply | SharedReply:
    """Decode an answer; raises one of :data:`UNREADABLE`."""
    reply: ScoreReply | SharedReply = codec_for(None).decode(
        payload, SharedReply if shared else ScoreReply
    )
    for result in results_of(reply):
        if not isinstance(result, Refused) and not (
            0 < len(result.option_ids) == len(result.probabilities)
            and all(0 <= probability <= 1 for probability in result.probabilities)
        ):
            raise msgspec.ValidationError("Expected one probability for each option")
    return reply


@asynccontextmanager
async def open_client(settings: Settings, name: str) -> AsyncIterator[BusClient]:
    """Connect, or raise :class:`NoAnswer` at once: a person or a probe waits."""
    client = TolerantClient(require_tls=wants_tls(settings))
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
