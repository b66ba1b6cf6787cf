"""Discovery: the NATS services protocol (ADR-32), which ``nats micro`` and other clients read.

On plain subscriptions of our own, without a queue group: each actor answers for itself. nats-py's
``nats.micro`` unsubscribes instead of draining, counts no error replies, and repeats exception
texts to whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from actor import __version__
from actor.bus.connection import Connection
from actor.bus.reply_subjects import is_answerable, reply_prefixes
from actor.life import rfc3339
from actor.settings import Settings
from actor.telemetry.endpoint_stats import EndpointCounters
from schemas.codec import codec_for
from schemas.decision import OPTIONS_MAX, OPTIONS_MIN
from schemas.discovery import (
    CONTRACT,
    EndpointInfo,
    EndpointStats,
    InfoResponse,
    PingResponse,
    StatsResponse,
)
from schemas.health import EngineHealth
from schemas.subjects import SCORE, SCORE_SHARED, STATUS, DiscoverySubjects, Subjects

__all__ = ["ENDPOINTS", "Discovery", "service_metadata"]

ENDPOINTS = (SCORE, SCORE_SHARED, STATUS)


def service_metadata(
    settings: Settings, connection: Connection, engine: EngineHealth, *, proof: str
) -> dict[str, str]:
    """Give what a caller may want to know before the first request; numbers as text (ADR-32)."""
    return {
        "schema": CONTRACT,
        "model": engine.model.source,
        "revision": engine.model.revision,
        "scorer": engine.scorer,
        "proof": proof,
        "max_payload": str(min(settings.request_bytes_max, connection.payload_bytes_max)),
        "max_tokens": str(settings.max_tokens),
        "options": f"{OPTIONS_MIN}-{OPTIONS_MAX}",
    }


class Discovery:
    """The owner of the discovery subscriptions. The service's id is the actor's instance."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        counters: EndpointCounters,
        beat: Callable[[], bytes],
        metadata: Mapping[str, str],
    ) -> None:
        """``beat`` gives the heartbeat of the moment, in JSON."""
        self._connection = connection
        self._counters = counters
        self._beat = beat
        self._subjects = DiscoverySubjects(settings.srv_prefix, settings.instance)
        self._reply_prefixes = reply_prefixes(settings)
        self._endpoints = _endpoints(settings)
        self._encode = codec_for(None).encode
        self._ping = PingResponse(
            id=settings.instance, version=__version__, metadata=dict(metadata)
        )
        self._started = ""
        self._subscriptions: list[Subscription] = []

    async def subscribe(self) -> None:
        """Answer from now on; whether the server lets us is known after ``confirm``."""
        self._started = rfc3339(datetime.now(UTC))
        # Encoded once: neither of these two changes while the service runs.
        ping, info = self._encode(self._ping), self._encode(self._info())
        answers: dict[str, Callable[[], bytes]] = {
            "PING": lambda: ping,
            "INFO": lambda: info,
            "STATS": lambda: self._encode(self._stats()),
        }
        for verb, answer in answers.items():
            callback = partial(self._answer, answer)
            for subject in self._subjects.of(verb):
                self._subscriptions.append(await self._connection.subscribe(subject, callback))

    async def end(self) -> None:
        """Unsubscribe; who had asked before is still answered."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await self._connection.end(*subscriptions)

    async def _answer(self, answer: Callable[[], bytes], message: Msg) -> None:
        # What was sent along is not looked at: the subject says all.
        if is_answerable(message.reply, self._reply_prefixes):
            await self._connection.publish(message.reply, answer())

    def _info(self) -> InfoResponse:
        ping = self._ping
        return InfoResponse(
            id=ping.id, version=ping.version, metadata=ping.metadata, endpoints=self._endpoints
        )

    def _stats(self) -> StatsResponse:
        ping = self._ping
        return StatsResponse(
            id=ping.id,
            version=ping.version,
            metadata=ping.metadata,
            started=self._started,
            endpoints=tuple(map(self._endpoint_stats, self._endpoints)),
        )

    def _endpoint_stats(self, endpoint: EndpointInfo) -> EndpointStats:
        figures = self._counters.figures(endpoint.name)
        return EndpointStats(
            name=endpoint.name,
            subject=endpoint.subject,
            queue_group=endpoint.queue_group,
            num_requests=figures.requests,
            num_errors=figures.errors,
            last_error=figures.last_error,
            processing_time=figures.processing_ns,
            average_processing_time=figures.average_ns,
            data=msgspec.Raw(self._beat()) if endpoint.name == STATUS else msgspec.UNSET,
        )


def _endpoints(settings: Settings) -> tuple[EndpointInfo, ...]:
    subjects, group = Subjects(settings.subject_prefix), settings.queue_group
    return (
        _endpoint(SCORE, subjects.score, group, request="score_request", reply="score_reply"),
        _endpoint(
            SCORE_SHARED,
            subjects.score_shared,
            group,
            request="shared_request",
            reply="shared_reply",
        ),
        _endpoint(STATUS, subjects.status, "", reply="heartbeat"),  # its requests are empty
    )


def _endpoint(name: str, subject: str, queue_group: str, **messages: str) -> EndpointInfo:
    metadata = {part: f"{CONTRACT}:{message}" for part, message in messages.items()}
    return EndpointInfo(name=name, subject=subject, queue_group=queue_group, metadata=metadata)
