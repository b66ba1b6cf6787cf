"""Reading a stretch of a stream message by message, without a consumer.

A consumer would be an object on the server, and a work queue allows no second one. A direct read
changes nothing for anybody, needs no state but a sequence number, and replay is slow on purpose.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import msgspec
from nats.aio.client import Client

from actor.bus.delivery import Delivery
from actor.bus.objects.api import Answer, Ask, NoApi, asked

__all__ = ["StreamBounds", "bounds_of", "first_at_or_after", "nanoseconds", "next_stored"]

NO_MESSAGE = 10037
"""The server's error code: no message with this sequence, or none behind it that fits."""


class StreamBounds(msgspec.Struct, frozen=True):
    """What is in a stream now."""

    first: int
    last: int


class _State(msgspec.Struct, frozen=True):
    first_seq: int
    last_seq: int


class _Info(Answer, frozen=True):
    state: _State | None = None


class _Message(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    time: str
    data: str = ""
    hdrs: str = ""


class _Got(Answer, frozen=True):
    message: _Message | None = None


async def bounds_of(ask: Ask, stream: str) -> StreamBounds:
    """Give the first and the last sequence of ``stream``; raises :class:`NoApi`."""
    info = await asked(ask, f"STREAM.INFO.{stream}", _Info, absent=())
    if info is None or info.state is None:
        raise NoApi(f"stream {stream}: the answer cannot be read")
    return StreamBounds(info.state.first_seq, info.state.last_seq)


async def next_stored(ask: Ask, stream: str, subject: str, sequence: int) -> Delivery | None:
    """Give the first message at or behind ``sequence`` whose subject fits; None: there is none.

    Raises :class:`NoApi`.
    """
    wanted = {"seq": max(sequence, 1), "next_by_subj": subject}
    got = await asked(ask, f"STREAM.MSG.GET.{stream}", _Got, wanted, absent=(NO_MESSAGE,))
    if got is None:
        return None
    if got.message is None:
        raise NoApi(f"stream {stream}: the answer cannot be read")
    message = got.message
    headers = await _headers(message.hdrs)
    try:
        return Delivery(
            subject=message.subject,
            payload=base64.b64decode(message.data),
            headers=headers or {},
            headers_unreadable=headers is None,
            stream=stream,
            sequence=message.seq,
            timestamp_ns=nanoseconds(message.time),
        )
    except ValueError:
        raise NoApi(f"stream {stream}: message {message.seq} cannot be read") from None


async def first_at_or_after(ask: Ask, stream: str, moment_ns: int) -> int:
    """Give from which sequence on messages were stored at ``moment_ns`` or later.

    One behind the last when there are none. By halving: the server's own search by time is younger
    than the servers that people run, and times grow with the sequence.
    """
    bounds = await bounds_of(ask, stream)
    low, high = bounds.first, bounds.last + 1
    while low < high:
        middle = (low + high) // 2
        message = await next_stored(ask, stream, ">", middle)
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


async def _headers(hdrs: str) -> dict[str, str] | None:
    """Read headers as the client does for a message that is delivered; None: they cannot be."""
    if not hdrs:
        return {}
    read: dict[str, str] | None
    try:
        read = await Client()._process_headers(base64.b64decode(hdrs))  # noqa: SLF001 - as delivered
    except Exception:  # noqa: BLE001 - the parser raises many kinds for bytes of anybody's
        return None
    return read or {}
