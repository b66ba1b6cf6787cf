"""What cannot be done, kept where people find it: the message as it was, and why."""

from __future__ import annotations

import re

import structlog

from actor.bus.asking import Asker
from actor.bus.connection import Connection
from actor.bus.delivery import Delivery
from actor.bus.stream_publish import publish_to_stream
from actor.settings import Settings
from actor.wire_size import wire_bytes
from schemas.subjects import (
    DEAD_CODE_HEADER,
    DEAD_DELIVERIES_HEADER,
    DEAD_HEADER,
    DEAD_REASON_HEADER,
    DEAD_SEQUENCE_HEADER,
    DEAD_STREAM_HEADER,
    DEAD_SUBJECT_HEADER,
    DEAD_TRUNCATED_HEADER,
    EXPECTED_STREAM_HEADER,
    MSG_ID_HEADER,
    NATS_HEADER,
    Subjects,
)

__all__ = ["DeadLetters"]

_log = structlog.get_logger()

_NAME = re.compile(r"[!-9;-~]+\Z")
"""What a header's name may be made of; nats-py refuses the whole message for another."""
_UNPRINTABLE = re.compile(r"[^\t\x20-\x7e\x80-\ud7ff\ue000-\U0010ffff]")
"""Half a surrogate pair is among it: it cannot be encoded."""
STORED_HEADER_BYTES_MAX = 65_535
"""A stream takes no message with more bytes of headers, whatever the server's ``max_payload``."""
REASON_CHARS_MAX = 500
SUBJECT_CHARS_MAX = 1000


class DeadLetters:
    """Publishes dead letters, each once."""

    def __init__(self, settings: Settings, connection: Connection, asker: Asker) -> None:
        self._stream = settings.dead_stream
        self._subjects = Subjects(settings.subject_prefix)
        self._connection = connection
        self._asker = asker

    async def publish(self, delivery: Delivery, *, rest: str, code: str, reason: str) -> str | None:
        """Store a dead letter on ``<prefix>.dead.<rest>``; gives why it could not be.

        ``reason`` must hold nothing of the message. A message that would not fit beside the
        headers that say why loses its own headers first, then the end of its body.
        """
        headers = {
            EXPECTED_STREAM_HEADER: self._stream,
            DEAD_CODE_HEADER: code,
            DEAD_REASON_HEADER: _UNPRINTABLE.sub("?", reason)[:REASON_CHARS_MAX],
            DEAD_DELIVERIES_HEADER: str(delivery.deliveries),
            DEAD_SUBJECT_HEADER: _UNPRINTABLE.sub("?", delivery.subject)[:SUBJECT_CHARS_MAX],
        }
        if delivery.stream:  # what has no name of its own is stored as often as it comes
            headers |= {
                # With the place: what two rules bury is one message of their stream.
                MSG_ID_HEADER: f"{rest}.{delivery.message_id}",
                DEAD_STREAM_HEADER: delivery.stream,
                DEAD_SEQUENCE_HEADER: str(delivery.sequence),
            }
        payload, whole = delivery.payload, _travelling(delivery) | headers
        limit = self._connection.payload_bytes_max
        if wire_bytes(b"", whole) > STORED_HEADER_BYTES_MAX or wire_bytes(payload, whole) > limit:
            whole = headers | {DEAD_TRUNCATED_HEADER: str(len(payload))}
            payload = payload[: limit - wire_bytes(b"", whole)]
        refused = await publish_to_stream(
            self._asker.request, self._stream, self._subjects.dead(rest), payload, whole
        )
        log = _log.error if refused else _log.warning
        log(
            "a dead letter could not be stored" if refused else "dead letter",
            rest=rest,
            code=code,
            reason=reason,
            deliveries=delivery.deliveries,
            stream=delivery.stream,
            sequence=delivery.sequence,
            refused=refused,
        )
        return refused


def _travelling(delivery: Delivery) -> dict[str, str]:
    """Give the headers that may go on: none that the server or a reader of ours would obey."""
    return {
        name: text
        for name, text in delivery.headers.items()
        if _NAME.match(name)
        and not name.lower().startswith((NATS_HEADER.lower(), DEAD_HEADER.lower()))
        and not _UNPRINTABLE.search(text)
    }
