"""Reading a stretch of a stream message by message, without a consumer.

A consumer would be an object on the server, and a work queue allows no second one. A direct read
changes nothing for anybody, needs no state but a sequence number, and replay is slow on purpose.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Any

import msgspec
from nats.aio.client import Client

from actor.bus.client import BusClient, NoAnswer, NoResponders
from actor.wire import UNREADABLE_HEADERS

__all__ = [
    "NoStream",
    "Stored",
    "StreamBounds",
    "bounds_of",
    "first_at_or_after",
    "nanoseconds",
    "next_stored",
]

API_TIMEOUT_S = 10.0
NO_MESSAGE = 10037
"""The server's error code: no message with this sequence, or none behind it that fits."""


class NoStream(Exception):
    """The stream cannot be read; the text says why."""


class StreamBounds(msgspec.Struct, frozen=True):
    """What is in a stream now."""

    first: int
    last: int


class Stored(msgspec.Struct, frozen=True):
    """A message of a stream."""

    subject: str
    payload: bytes
    headers: dict[str, str]
    stream: str
    sequence: int
    timestamp_ns: int

    @property
    def message_id(self) -> str:
        """The same as a consumer of the stream gives it, so that a decision is published once."""
        return f"{self.stream}.{self.sequence}.{self.timestamp_ns}"


class _Error(msgspec.Struct, frozen=True):
    err_code: int = 0
    description: str = ""


class _State(msgspec.Struct, frozen=True):
    first_seq: int
    last_seq: int


class _Info(msgspec.Struct, frozen=True):
    error: _Error | None = None
    state: _State | None = None


class _Message(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    time: str
    data: str = ""
    hdrs: str = ""


class _Got(msgspec.Struct, frozen=True):
    error: _Error | None = None
    message: _Message | None = None


async def bounds_of(client: BusClient, stream: str) -> StreamBounds:
    """Give the first and the last sequence of ``stream``; raises :class:`NoStream`."""
    info = await _api(client, f"STREAM.INFO.{stream}", None, _Info)
    if info.state is None:
        raise NoStream(f"stream {stream}: {_text(info.error)}")
    return StreamBounds(info.state.first_seq, info.state.last_seq)


async def next_stored(client: BusClient, stream: str, subject: str, sequence: int) -> Stored | None:
    """Give the first message at or behind ``sequence`` whose subject fits; None: there is none.

    Raises :class:`NoStream`.
    """
    asked = {"seq": max(sequence, 1), "next_by_subj": subject}
    got = await _api(client, f"STREAM.MSG.GET.{stream}", asked, _Got)
    if got.message is None:
        if got.error is not None and got.error.err_code == NO_MESSAGE:
            return None
        raise NoStream(f"stream {stream}: {_text(got.error)}")
    message = got.message
    try:
        payload = base64.b64decode(message.data)
        headers = await _headers(message.hdrs)
        timestamp_ns = nanoseconds(message.time)
    except (binascii.Error, ValueError):
        raise NoStream(f"stream {stream}: message {message.seq} cannot be read") from None
    return Stored(message.subject, payload, headers, stream, message.seq, timestamp_ns)


async def first_at_or_after(client: BusClient, stream: str, moment_ns: int) -> int:
    """Give from which sequence on messages were stored at ``moment_ns`` or later.

    One behind the last when there are none. By halving: the server's own search by time is younger
    than the servers that people run, and times grow with the sequence.
    """
    bounds = await bounds_of(client, stream)
    low, high = bounds.first, bounds.last + 1
    while low < high:
        middle = (low + high) // 2
        message = await next_stored(client, stream, ">", middle)
        if message is None or message.timestamp_ns >= moment_ns:
            high = middle
        else:
            low = message.sequence + 1
    return low


def nanoseconds(text: str) -> int:
    """Give nanoseconds since 1970 of a time in RFC 3339; raises ``ValueError``.

    datetime has microseconds, the server has nanoseconds, and they are a part of message ids.
    """
    head, dot, rest = text.partition(".")
    digits = ""
    if dot:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        head += rest[len(digits) :]
    moment = datetime.fromisoformat(head)
    if moment.tzinfo is None:
        raise ValueError("a time needs an offset, or Z")
    whole = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 1_000_000_000 + int(f"{digits:0<9.9}")


async def _headers(hdrs: str) -> dict[str, str]:
    """Read headers as the client does for a message that is delivered."""
    if not hdrs:
        return {}
    read: dict[str, str] | None
    try:
        read = await Client()._process_headers(base64.b64decode(hdrs))  # noqa: SLF001 - as delivered
    except Exception:  # noqa: BLE001 - the parser raises many kinds for bytes of anybody's
        return {UNREADABLE_HEADERS: "1"}
    return read or {}


async def _api(client: BusClient, verb: str, body: Any, record: type[Any]) -> Any:
    payload = b"" if body is None else msgspec.json.encode(body)
    try:
        message = await client.request(f"$JS.API.{verb}", payload, None, timeout_s=API_TIMEOUT_S)
    except NoResponders:
        raise NoStream("the server has no JetStream for this user") from None
    try:
        return msgspec.json.decode(message.data, type=record)
    except (msgspec.MsgspecError, RecursionError):
        raise NoAnswer("the server's reply cannot be read") from None


def _text(error: _Error | None) -> str:
    return error.description if error else "the server's reply cannot be read"
