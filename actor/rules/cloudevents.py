"""CloudEvents 1.0 over NATS: reading an event's attributes, and giving a decision its own.

Binary mode: attributes are ``ce-`` headers, percent-encoded, and the payload is the data.
Structured mode: the payload is an envelope in JSON, and ``Content-Type`` says so.
"""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

import msgspec

from actor.rules.outcomes import BAD_CLOUDEVENT, BINARY, NOT_JSON, TOO_DEEP, Outcome, StopEvent
from schemas.subjects import (
    CLOUDEVENT_HEADER,
    CLOUDEVENT_TYPE,
    CLOUDEVENTS_JSON,
    CONTENT_TYPE,
    JSON,
)

__all__ = [
    "CloudEvent",
    "header_value",
    "is_structured",
    "read_binary",
    "read_structured",
    "why_not_json",
    "write",
]

_VERSION = "1.0"
_FAMILY = "application/cloudevents"
_PLAIN = re.compile(r"[!#-$&-~]*\Z")
"""Printable ASCII but ``"`` and ``%``: what stands in a header as it is."""
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class CloudEvent(msgspec.Struct, frozen=True):
    """What is known of an event beside its data."""

    structured: bool
    id: str
    source: str
    subject: str | None = None
    traceparent: str | None = None
    """An extension that goes on to the decision."""


class _Envelope(msgspec.Struct, frozen=True):
    """The JSON format. Attributes that are not used here are not read."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str | None = None
    traceparent: str | None = None
    data: Any = msgspec.UNSET
    data_base64: str | None = None


class _Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The envelope of a decision."""

    specversion: str
    id: str
    source: str
    type: str
    datacontenttype: str
    subject: str | None = None
    traceparent: str | None = None
    data: Any


_decoder = msgspec.json.Decoder(_Envelope)


def header_value(text: str) -> str:
    """Give ``text`` as a header can carry it: percent-encoded where it is not plain ASCII."""
    return text if _PLAIN.match(text) else urllib.parse.quote(text, safe=_SAFE)


def is_structured(content_type: str) -> bool:
    """True when the payload is a CloudEvents envelope, of whatever format."""
    return content_type.lstrip()[: len(_FAMILY)].lower() == _FAMILY


def read_binary(headers: Mapping[str, str]) -> CloudEvent | None:
    """Read the attributes of ``headers``, whose names are in lower case; None without any."""
    if f"{CLOUDEVENT_HEADER}specversion" not in headers:
        return None
    attributes: dict[str, str] = {}
    for name in ("specversion", "id", "source", "type", "subject", "traceparent"):
        header = CLOUDEVENT_HEADER + name
        if header in headers:
            try:
                attributes[name] = urllib.parse.unquote(headers[header], errors="strict")
            except UnicodeDecodeError:
                raise StopEvent(BAD_CLOUDEVENT, header, "is not percent-encoded UTF-8") from None
    _check(attributes.get)
    return CloudEvent(
        structured=False,
        id=attributes["id"],
        source=attributes["source"],
        subject=attributes.get("subject"),
        traceparent=attributes.get("traceparent"),
    )


def read_structured(content_type: str, payload: bytes) -> tuple[CloudEvent, Any]:
    """Read an envelope: its attributes, and its data.

    The data are a JSON value, or bytes if they came in base64, or ``UNSET``.
    """
    if content_type.partition(";")[0].strip().lower() != CLOUDEVENTS_JSON:
        raise StopEvent(BAD_CLOUDEVENT, CONTENT_TYPE, f"only {CLOUDEVENTS_JSON} is read")
    envelope = _decode(payload)
    _check(lambda name: getattr(envelope, name))
    cloud = CloudEvent(True, envelope.id, envelope.source, envelope.subject, envelope.traceparent)
    if envelope.data_base64 is None:
        return cloud, envelope.data
    if envelope.data is not msgspec.UNSET:
        raise StopEvent(BAD_CLOUDEVENT, "data_base64", "stands beside data")
    try:
        return cloud, base64.b64decode(envelope.data_base64, validate=True)
    except (binascii.Error, ValueError):  # ValueError: characters that are not ASCII
        raise StopEvent(BAD_CLOUDEVENT, "data_base64", "is not base64") from None


def _decode(payload: bytes) -> _Envelope:
    try:
        return _decoder.decode(payload)
    except msgspec.ValidationError:
        raise StopEvent(
            BAD_CLOUDEVENT, "event", "an attribute is missing or no string, or a number too large"
        ) from None
    except msgspec.DecodeError:
        raise StopEvent(*why_not_json(payload)) from None
    except RecursionError:
        raise StopEvent(TOO_DEEP, "event", "is nested too deep") from None


def why_not_json(payload: bytes) -> tuple[Outcome, str, str]:
    """Tell bytes from text that is not JSON."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return BINARY, "event", "is not UTF-8"
    return NOT_JSON, "event", "is not JSON"


def _check(attribute: Any) -> None:
    if attribute("specversion") != _VERSION:
        raise StopEvent(BAD_CLOUDEVENT, "specversion", f"is not {_VERSION}")
    for name in ("id", "source", "type"):
        if not attribute(name):
            raise StopEvent(BAD_CLOUDEVENT, name, "is missing or empty")


def write(
    cloud: CloudEvent, rule: str, decision_id: str, data: bytes
) -> tuple[bytes, dict[str, str]]:
    """Give payload and headers of a decision about ``cloud``, in the mode that it came in.

    There is no ``time``: a decision that is published again must be the same to the last byte.
    """
    attributes = {
        "specversion": _VERSION,
        "id": decision_id,
        "source": f"/semif/rules/{rule}",
        "type": CLOUDEVENT_TYPE,
        "datacontenttype": JSON,
    }
    if cloud.subject is not None:
        attributes["subject"] = cloud.subject
    if cloud.traceparent is not None:
        attributes["traceparent"] = cloud.traceparent
    if cloud.structured:
        payload = msgspec.json.encode(_Written(**attributes, data=msgspec.Raw(data)))
        return payload, {CONTENT_TYPE: f"{CLOUDEVENTS_JSON}; charset=UTF-8"}
    headers = {CLOUDEVENT_HEADER + name: header_value(text) for name, text in attributes.items()}
    return data, headers | {CONTENT_TYPE: JSON}
