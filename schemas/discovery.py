"""Answers to PING, INFO and STATS, as the NATS services protocol (ADR-32) defines them.

The protocol's records, not ours: ``schemas/v1`` does not hold them. The ``nats`` command hides an
answer that its schemas refuse, so tests hold these against the same schemas.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from schemas.subjects import SERVICE

__all__ = [
    "CONTRACT",
    "EndpointInfo",
    "EndpointStats",
    "InfoResponse",
    "PingResponse",
    "StatsResponse",
]

CONTRACT = "urn:semif:v1"
"""Where the schemas are: ``$id`` of the message ``score_request`` is this, a colon, its name.

``semif-actor schema DIR`` writes the files.
"""
DESCRIPTION = "Semantic decisions: how likely is each option, given a state and a question?"


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer begins with."""

    id: str
    """Name of the actor."""
    version: str
    """Version of semif-actor, SemVer."""
    metadata: dict[str, str]
    """Facts that stay as they are while the service runs."""
    name: str = SERVICE
    """Name of the service."""


class PingResponse(
    _Identity, frozen=True, kw_only=True, tag_field="type", tag="io.nats.micro.v1.ping_response"
):
    """Answer to PING: who is there."""


class EndpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint: where to ask, and what."""

    name: str
    """Name of the endpoint, the last token of its subject."""
    subject: str
    """Subject of the requests."""
    queue_group: str
    """Queue group; empty without one: then every actor answers."""
    metadata: dict[str, str]
    """``$id`` of the schemas of request and reply."""


class InfoResponse(
    _Identity, frozen=True, kw_only=True, tag_field="type", tag="io.nats.micro.v1.info_response"
):
    """Answer to INFO: what can be asked."""

    endpoints: tuple[EndpointInfo, ...]
    """Where to ask."""
    description: str = DESCRIPTION
    """What the service does."""


class EndpointStats(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint has done since the start."""

    name: str
    """Name of the endpoint."""
    subject: str
    """Subject of the requests."""
    queue_group: str
    """Queue group; empty without one."""
    num_requests: int
    """Requests answered, with a result or with an error."""
    num_errors: int
    """Those of them answered with an error."""
    last_error: str
    """Code and fixed text of the last error; empty without one."""
    processing_time: int
    """Nanoseconds from receipt to reply, of all requests together."""
    average_processing_time: int
    """``processing_time`` for each request; 0 without requests."""
    data: msgspec.Raw | UnsetType = UNSET
    """Of ``status``: the heartbeat of this moment, which that endpoint answers with."""


class StatsResponse(
    _Identity, frozen=True, kw_only=True, tag_field="type", tag="io.nats.micro.v1.stats_response"
):
    """Answer to STATS: what has been done."""

    started: str
    """When the service subscribed, RFC 3339 in UTC."""
    endpoints: tuple[EndpointStats, ...]
    """One entry for each endpoint, in the order of INFO."""
