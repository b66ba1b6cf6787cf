"""Bytes to records and back, in JSON and MessagePack, within limits.

Decoders and encoders are made once. Reading is stricter than ``json.loads``: no NaN or Infinity,
no number out of range, no lone surrogate, UTF-8 only, a bounded depth. A repeated object key is
the one thing let through: the last wins, as in SemIf.
"""

from __future__ import annotations

import math
import re
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from schemas.decision import ScoreReply, ScoreRequest, SharedReply, SharedRequest, Wrapped
from schemas.errors import ErrorReply, Invalid, Malformed, TooLarge, UnsupportedMediaType
from schemas.health import Heartbeat
from schemas.subjects import JSON, MSGPACK

__all__ = ["Codec", "Request", "codec_for", "decode_request"]

Request = TypeVar("Request", ScoreRequest, SharedRequest)
Record = TypeVar("Record")

FIELD_NAME_CHARS_MAX = 64
"""A field name of the caller's is echoed in ``field`` up to this length."""


class _Decoder(Protocol):
    def decode(self, data: bytes, /) -> Any: ...


class _Encoder(Protocol):
    def encode(self, record: Any, /) -> bytes: ...


class Codec(Generic[Record]):
    """One media type: its name, its encoder, and a decoder for each record of the contract."""

    def __init__(self, media_type: str, encoder: _Encoder, decoder_type: Any) -> None:
        self.media_type = media_type
        self.encode = encoder.encode
        self._decoders: dict[type, _Decoder] = {
            record: decoder_type(record)
            for record in (
                ScoreRequest,
                SharedRequest,
                ScoreReply,
                SharedReply,
                ErrorReply,
                Wrapped,
                Heartbeat,
            )
        }

    def decode(self, data: bytes, record: type[Record]) -> Record:
        """Read ``data`` as ``record``; raises msgspec's errors. For replies and heartbeats."""
        decoded: Record = self._decoders[record].decode(data)
        return decoded


_JSON: Codec[Any] = Codec(JSON, msgspec.json.Encoder(), msgspec.json.Decoder)
_MSGPACK: Codec[Any] = Codec(MSGPACK, msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder)


def codec_for(content_type: str | None) -> Codec[Any]:
    """Give the codec that ``content_type`` names; JSON without one.

    Parameters after ``;`` are ignored but for a charset other than UTF-8, which is refused.
    """
    if content_type is None:
        return _JSON
    media_type, _, parameters = content_type.partition(";")
    charset = re.search(r"charset\s*=\s*\"?([^\s;\"]+)", parameters, re.IGNORECASE)
    if charset and charset[1].lower() not in {"utf-8", "utf8"}:
        raise UnsupportedMediaType
    match media_type.strip().lower():
        case "" | "application/json":
            return _JSON
        case "application/msgpack" | "application/x-msgpack" | "application/vnd.msgpack":
            return _MSGPACK
        case _:
            raise UnsupportedMediaType


def decode_request(
    codec: Codec[Any], data: bytes, record: type[Request], *, bytes_max: int, depth_max: int
) -> Request:
    """Read a request from an untrusted caller.

    Raises :class:`TooLarge`, :class:`Malformed` (the bytes cannot be read), or :class:`Invalid`
    (they can, but do not have the fields of ``record``).
    """
    if len(data) > bytes_max:
        raise TooLarge("The message is too large", size=len(data), limit=bytes_max, unit="bytes")
    try:
        request: Request = codec.decode(data, record)
    except msgspec.ValidationError as error:
        raise _explain(error) from None
    except (msgspec.DecodeError, RecursionError):
        # RecursionError is msgspec's own guard: 100,000 opening brackets end here.
        raise Malformed from None
    check_json_value(request.state, depth_max=depth_max)
    return request


_PATH = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$")
_NAME = re.compile(
    r"^Object (?P<kind>missing required|contains unknown) field `(?P<name>.*)`$", re.DOTALL
)


def _explain(error: msgspec.ValidationError) -> Malformed | Invalid:
    """Turn msgspec's sentence into ours: its path and its kind are kept, its text is not."""
    text = str(error)
    path_match = _PATH.search(text)
    path = path_match["path"] if path_match else ""
    if path_match and path_match["key"]:
        return Malformed("An object key is not a string.", field=path or None)
    text = text[: path_match.start()] if path_match else text
    # Before anything else that reads the text: a field's name is the caller's, and may say
    # "out of range".
    name_match = _NAME.search(text)
    if name_match:
        name = name_match["name"][:FIELD_NAME_CHARS_MAX]
        field = f"{path}.{name}" if path else name
        what = "is missing" if name_match["kind"] == "missing required" else "is not known"
        return Invalid(f"A field {what}.", field=field)
    if "out of range" in text:
        return Malformed("A number is out of range.", field=path or None)
    return Invalid("A field has the wrong type.", field=path or None)


def check_json_value(value: Any, *, depth_max: int) -> None:
    """Refuse what JSON could not carry (MessagePack can) and nesting deeper than ``depth_max``.

    Walks with a stack of its own, so that depth costs no recursion. ``value`` itself is depth 1.
    """
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        match item:
            case bool() | int() | str() | None:
                continue
            case float():
                if not math.isfinite(item):
                    raise Malformed("A number is not finite.", field="state")
                continue
            case dict():
                if not all(isinstance(key, str) for key in item):
                    raise Malformed("An object key is not a string.", field="state")
                children = item.values()
            case list() | tuple():
                children = item  # type: ignore[assignment]
            case _:
                raise Malformed("A value has a type that JSON does not have.", field="state")
        if depth > depth_max:
            raise Malformed(f"The state is nested deeper than {depth_max} levels.", field="state")
        stack.extend((child, depth + 1) for child in children)
