"""Publishing to a stream: done when the server says which stream has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

__all__ = ["Request", "publish_to_stream"]

Request = Callable[[str, bytes, dict[str, str] | None], Awaitable[bytes | None]]
"""Sends a request and gives the reply's body; None when there was none in time."""


class _Error(msgspec.Struct, frozen=True):
    description: str = ""


class _PubAck(msgspec.Struct, frozen=True):
    stream: str = ""
    error: _Error | None = None


async def publish_to_stream(
    request: Request, stream: str, subject: str, payload: bytes, headers: dict[str, str] | None
) -> str | None:
    """Give why ``stream`` did not take the message; None when it did, or had it before."""
    body = await request(subject, payload, headers)
    if body is None:
        return "no stream has acknowledged it"
    try:
        ack = msgspec.json.decode(body, type=_PubAck)
    except (msgspec.MsgspecError, RecursionError):
        return "something else than a stream answered"
    if ack.error is not None:
        return f"the stream refused it: {ack.error.description}"
    if ack.stream != stream:
        return f"stream {ack.stream} took it"
    return None
