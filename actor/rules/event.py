"""From a message to an event: its data as JSON or text, who it is, and how far it has come."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from actor.rules.cloudevents import (
    CloudEvent,
    header_value,
    is_structured,
    read_binary,
    read_structured,
    why_not_json,
)
from actor.rules.outcomes import (
    BAD_STATE,
    BINARY,
    EMPTY,
    LOOP,
    NOT_JSON,
    TOO_DEEP,
    TOO_LARGE,
    StopEvent,
)
from schemas.subjects import CONTENT_TYPE, HOPS_HEADER, MSG_ID_HEADER

__all__ = ["Event", "Format", "Message", "read_event"]

Format = Literal["json", "text"]

ID_CHARS_MAX = 128
"""Longer ids are hashed: whoever publishes events chooses their length, and a stream keeps each
for its whole window.
"""
_HOPS_DIGITS_MAX = 9
_decoder = msgspec.json.Decoder()


class Message(msgspec.Struct, frozen=True):
    """An event as the bus delivered it."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    """With the names as they came; they are read without regard to case."""
    id: str | None = None
    """What the bus knows it by, ``<stream>.<sequence>.<time>``: equal at each delivery."""


class Event(msgspec.Struct, frozen=True):
    """An event that can be read."""

    message: Message
    value: Any
    """JSON value, or text; of a CloudEvent the data. Pointers point into it."""
    cloud: CloudEvent | None
    id: str | None
    """Equal whenever the event is seen: the bus's name for it, ``Nats-Msg-Id``, or a CloudEvent's
    source and id. None: an event that cannot be told from another like it. Bounded plain ASCII."""
    hops: int
    """Rules it has been through."""


def read_event(message: Message, form: Format, *, bytes_max: int, hops_max: int) -> Event:
    """Read ``message``; raises :class:`StopEvent`."""
    headers = {name.lower(): text for name, text in message.headers.items()}
    hops = _read_hops(headers.get(HOPS_HEADER.lower(), "0"), hops_max)
    size = len(message.payload)
    if size > bytes_max:
        raise StopEvent(TOO_LARGE, "event", f"{size} bytes, the limit is {bytes_max}")
    content_type = headers.get(CONTENT_TYPE.lower(), "")
    cloud: CloudEvent | None
    if is_structured(content_type):
        _check_not_empty(message.payload)
        cloud, data = read_structured(content_type, message.payload)
        value = _value_of(data, form)
    else:
        cloud = read_binary(headers)
        value = _read(message.payload, form)
    known_as = message.id or headers.get(MSG_ID_HEADER.lower())
    if not known_as and cloud:
        # A blank parts the two: in a URI reference, which the source is, there is none.
        known_as = f"{cloud.source} {cloud.id}"
    return Event(message, value, cloud, _bounded_id(known_as) if known_as else None, hops)


def _bounded_id(text: str) -> str:
    plain = header_value(text)
    if len(plain) <= ID_CHARS_MAX:
        return plain
    return f"sha256-{hashlib.sha256(plain.encode()).hexdigest()}"


def _read_hops(text: str, hops_max: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _HOPS_DIGITS_MAX):
        raise StopEvent(LOOP, HOPS_HEADER, "is not a count")
    hops = int(text)
    if hops >= hops_max:
        raise StopEvent(LOOP, HOPS_HEADER, f"{hops} rules, the limit is {hops_max}")
    return hops


def _check_not_empty(payload: bytes) -> None:
    if not payload or payload.isspace():
        raise StopEvent(EMPTY, "event", "has no content")


def _read(payload: bytes, form: Format) -> Any:
    _check_not_empty(payload)
    if form == "text":
        try:
            return payload.decode()
        except UnicodeDecodeError:
            raise StopEvent(BINARY, "event", "is not UTF-8") from None
    try:
        return _decoder.decode(payload)
    except msgspec.ValidationError:
        raise StopEvent(NOT_JSON, "event", "a number is out of range") from None
    except msgspec.DecodeError:
        raise StopEvent(*why_not_json(payload)) from None
    except RecursionError:
        raise StopEvent(TOO_DEEP, "event", "is nested too deep") from None


def _value_of(data: Any, form: Format) -> Any:
    """Take the data of an envelope, which are JSON already, or bytes, or not there."""
    if isinstance(data, bytes):
        return _read(data, form)
    if data is msgspec.UNSET or data is None or data == "":
        raise StopEvent(EMPTY, "data", "has no content")
    if form == "text" and not isinstance(data, str):
        raise StopEvent(BAD_STATE, "data", "is not text, and the rule reads text")
    return data
