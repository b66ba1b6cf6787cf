"""JetStream's management API: what streams and consumers there are, as the server tells it.

nats-py's own manager hides what matters here: its ``pull_subscribe`` takes a durable with other
settings without a word, and its classes drop the fields that they do not know, which an update
would then set back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import nats.errors

from actor.bus.asking import Asker, Nobody, Unanswered
from actor.bus.client import BusClient, NoAnswer, NoResponders
from actor.bus.connection import Connection
from actor.tasks import end
from schemas.subjects import JETSTREAM_API

__all__ = [
    "Answer",
    "Ask",
    "ConsumerConfig",
    "ConsumerInfo",
    "NoApi",
    "StreamConfig",
    "StreamInfo",
    "asked",
    "asking",
    "asking_as_client",
    "change",
    "consumer_info",
    "consumers_of",
    "stream_info",
    "streams_taking",
]

ANSWER_WITHIN_S = 5.0
CONSUMERS_SHOWN_MAX = 256
"""The server's own page: nobody reads further in an error text."""
NOT_FOUND = frozenset((10014, 10059))
"""The server's codes for a consumer and a stream that are not there."""
NOT_ENABLED = frozenset((10039, 10076))
"""For this account, and on this server."""
NO_JETSTREAM = "there is no JetStream here: neither the server nor this account has it"

Ask = Callable[[str, bytes], Awaitable[bytes]]
"""Asks an endpoint of the API, named without its first tokens; raises :class:`NoApi`."""


class NoApi(Exception):
    """The server gave no answer, or another one than asked for; the text says why."""


class StreamConfig(msgspec.Struct, frozen=True):
    """Those settings of a stream that matter to an actor."""

    name: str
    subjects: tuple[str, ...] | None = ()
    retention: str = "limits"
    storage: str = "file"
    discard: str = "old"
    max_msgs: int = -1
    max_bytes: int = -1
    max_msgs_per_subject: int = -1
    max_msg_size: int = -1
    max_age: int = 0
    """Nanoseconds; 0 is for ever."""
    duplicate_window: int = 0
    """Nanoseconds."""
    no_ack: bool = False
    sealed: bool = False
    mirror: dict[str, Any] | None = None
    sources: list[Any] | None = None
    subject_transform: dict[str, Any] | None = None


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream that is there."""

    config: StreamConfig
    whole: dict[str, Any]
    """Its configuration as the server gave it: an update sends all of it back."""


class ConsumerConfig(msgspec.Struct, frozen=True):
    """Those settings of a consumer that matter to an actor."""

    durable_name: str = ""
    deliver_subject: str = ""
    """Where a push consumer delivers; empty for one that is pulled from."""
    ack_policy: str = "none"
    ack_wait: int = 0
    """Nanoseconds."""
    max_deliver: int = -1
    max_ack_pending: int = -1
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] | None = None
    backoff: list[int] | None = None
    replay_policy: str = "instant"
    headers_only: bool = False
    inactive_threshold: int = 0
    """Nanoseconds without a pull after which the server deletes it; 0 is never."""
    max_batch: int = 0
    max_bytes: int = 0
    max_expires: int = 0
    """Limits of one pull request; 0 is none."""
    priority_groups: list[str] | None = None

    @property
    def filters(self) -> frozenset[str]:
        """The subjects it delivers; none stands for all of its stream."""
        return frozenset(filter(None, (self.filter_subject, *(self.filter_subjects or ()))))


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer that is there."""

    name: str
    config: ConsumerConfig
    whole: dict[str, Any]
    """Its configuration as the server gave it: an update sends all of it back."""
    paused: bool = False


class _Error(msgspec.Struct, frozen=True):
    err_code: int = 0
    description: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What every answer of the API may be: an error."""

    error: _Error | None = None


class _Reply(Answer, frozen=True):
    name: str = ""
    config: msgspec.Raw = msgspec.Raw()
    paused: bool = False
    streams: tuple[str, ...] | None = None
    consumers: tuple[_Reply, ...] | None = None


_Kind = TypeVar("_Kind")
_Record = TypeVar("_Record", bound=Answer)


async def stream_info(ask: Ask, stream: str) -> StreamInfo | None:
    """Give a stream, or None when there is none of this name; raises :class:`NoApi`."""
    reply = await asked(ask, f"STREAM.INFO.{stream}", _Reply)
    if reply is None:
        return None
    return StreamInfo(_config(reply, StreamConfig), _config(reply, dict[str, Any]))


async def consumer_info(ask: Ask, stream: str, durable: str) -> ConsumerInfo | None:
    """Give a consumer, or None when there is none of this name; raises :class:`NoApi`."""
    reply = await asked(ask, f"CONSUMER.INFO.{stream}.{durable}", _Reply)
    return None if reply is None else _consumer(reply)


async def streams_taking(ask: Ask, subject: str) -> tuple[str, ...]:
    """Name the streams that take messages of ``subject``, wildcards allowed."""
    reply = await asked(ask, "STREAM.NAMES", _Reply, {"subject": subject})
    return (reply.streams if reply else None) or ()


async def consumers_of(ask: Ask, stream: str) -> tuple[ConsumerInfo, ...]:
    """Give the consumers of ``stream``, those that are not durable too."""
    reply = await asked(ask, f"CONSUMER.LIST.{stream}", _Reply, {"offset": 0})
    return tuple(map(_consumer, (reply.consumers if reply else None) or ()))[:CONSUMERS_SHOWN_MAX]


async def change(ask: Ask, endpoint: str, body: Mapping[str, Any]) -> None:
    """Make or update an object; raises :class:`NoApi` with the server's words."""
    if await asked(ask, endpoint, _Reply, body) is None:
        raise NoApi(f"{endpoint}: what it belongs to is not there")


async def asked(
    ask: Ask,
    endpoint: str,
    record: type[_Record],
    body: Mapping[str, Any] | None = None,
    *,
    absent: Collection[int] = NOT_FOUND,
) -> _Record | None:
    """Ask and decode; None for an error whose code is among ``absent``. Raises :class:`NoApi`."""
    payload = await ask(endpoint, b"" if body is None else msgspec.json.encode(body))
    try:
        reply = msgspec.json.decode(payload, type=record)
    except (msgspec.MsgspecError, RecursionError):
        raise NoApi(f"{endpoint}: the answer cannot be read") from None
    if reply.error is None:
        return reply
    if reply.error.err_code in absent:
        return None
    if reply.error.err_code in NOT_ENABLED:
        raise NoApi(NO_JETSTREAM)
    raise NoApi(f"{endpoint}: {reply.error.description} ({reply.error.err_code})")


def _consumer(reply: _Reply) -> ConsumerInfo:
    config, whole = _config(reply, ConsumerConfig), _config(reply, dict[str, Any])
    return ConsumerInfo(reply.name, config, whole, reply.paused)


def _config(reply: _Reply, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(reply.config, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        raise NoApi("a configuration cannot be read: is the server newer than this?") from None


@asynccontextmanager
async def asking(connection: Connection) -> AsyncIterator[Ask]:
    """Ask by the actor's connection, one question at a time."""
    asker = Asker(connection)

    async def ask(endpoint: str, body: bytes) -> bytes:
        subject = f"{JETSTREAM_API}.{endpoint}"
        refused = connection.incidents.publishes_refused
        asked = asyncio.create_task(asker.ask(subject, body, within_s=ANSWER_WITHIN_S))
        try:
            await asyncio.sleep(0)  # it is published now, before the barrier
            # What the server does not let us ask gets no answer. Its error comes before the PONG
            # of the barrier: that is known without a wait.
            await connection.barrier()
            if connection.incidents.publishes_refused > refused:
                raise NoApi(f"the server does not let us ask {subject}")
            message = await asked
        except nats.errors.Error:
            raise NoApi(f"{subject} could not be asked: the connection broke") from None
        except Nobody:
            raise NoApi(NO_JETSTREAM) from None
        except Unanswered as error:
            raise NoApi(f"{subject}: {error}") from None
        finally:
            await end(asked)
        return bytes(message.data)

    await asker.open()
    try:
        yield ask
    finally:
        await asker.close()


def asking_as_client(client: BusClient) -> Ask:
    """Ask by the connection of a command."""

    async def ask(endpoint: str, body: bytes) -> bytes:
        subject = f"{JETSTREAM_API}.{endpoint}"
        try:
            reply = await client.request(subject, body, None, timeout_s=ANSWER_WITHIN_S)
        except NoResponders:
            raise NoApi(NO_JETSTREAM) from None
        except NoAnswer as error:
            raise NoApi(f"{subject}: {error}; may this user ask it?") from None
        return bytes(reply.data)

    return ask
