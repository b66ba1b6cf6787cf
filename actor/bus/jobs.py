"""Requests from a stream: each one's result into another stream, before it is acknowledged."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

import msgspec

from actor.bus.asking import Asker
from actor.bus.connection import Connection
from actor.bus.delivery import Delivery, Done, Hopeless, Retry, Verdict
from actor.bus.stream_publish import publish_to_stream
from actor.settings import Settings
from actor.wire import UNREADABLE_HEADERS, Incoming, Reply
from actor.wire_size import wire_bytes
from schemas.codec import codec_for
from schemas.errors import SemifError, worth_another_delivery
from schemas.subjects import (
    CONTENT_TYPE,
    EXPECTED_LAST_ID_HEADER,
    EXPECTED_STREAM_HEADER,
    JSON,
    MSG_ID_HEADER,
    Subjects,
)

__all__ = ["CALLER", "Jobs"]

CALLER = "$jobs"
"""Who asks, for the turns at the model: all jobs together are one caller."""
NAMELESS = "unnamed"
"""Last token of a dead letter's subject whose job has a subject that names nothing."""


_TOKEN = re.compile(r"(?![*>]\Z)[^\s\x00-\x1f\x7f\ufffd]+")


class _Kind(msgspec.Struct):
    """Tells the two requests apart; whatever else there is passes by unread."""

    decisions: msgspec.Raw = msgspec.Raw()


class _Stored(msgspec.Struct):
    duplicate: bool = False


_DUPLICATE = msgspec.json.Decoder(_Stored)
_KIND_JSON = msgspec.json.Decoder(_Kind)
_KIND_MSGPACK = msgspec.msgpack.Decoder(_Kind)


class Jobs:
    """What a pull worker does with the deliveries of the jobs' consumer."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        asker: Asker,
        answer: Callable[[Incoming], Awaitable[Reply]],
    ) -> None:
        """``answer`` is the handler's: it raises :class:`SemifError` alone."""
        self._connection = connection
        self._asker = asker
        self._answer = answer
        self._stream = settings.results_stream
        self._subjects = Subjects(settings.subject_prefix)
        self._prefix = self._subjects.jobs("")

    def rest_of(self, delivery: Delivery) -> str:
        """Give what follows ``<prefix>.jobs.``, or a name for what has none."""
        return self._rest(delivery.subject) or NAMELESS

    async def process(self, delivery: Delivery) -> Verdict:
        """Answer a job and store its result."""
        rest = self._rest(delivery.subject)
        if not rest:
            return Hopeless("bad_subject", "No result subject can be made of the job's.")
        if delivery.deliveries > 1 and await self.has_result(delivery):
            return Done()  # now, not after the work: it may take longer than the stream remembers
        headers = {EXPECTED_STREAM_HEADER: self._stream, MSG_ID_HEADER: delivery.message_id}
        try:
            reply = await self._answer(self._incoming(delivery, headers))
        except SemifError as error:
            if not worth_another_delivery(error):
                return Hopeless(error.code, str(error))
            return Retry(error.code, str(error), (error.retry_after_ms or 0) / 1000)
        refused = await publish_to_stream(
            self._asker.request,
            self._stream,
            self._subjects.results(rest),
            reply.payload,
            headers | (reply.headers or {}),
        )
        return Retry("unpublished", refused) if refused else Done()

    async def has_result(self, delivery: Delivery) -> bool | None:
        """Tell whether the job's result is stored; None when the stream does not say.

        Asked of a job that comes again, and before one is given up: whoever had it may have died
        between result and acknowledgement. The question is a message that the stream cannot store,
        for it is to follow one that there is not: a stream looks for duplicates first.
        """
        answer = await self._asker.request(
            self._subjects.results(self.rest_of(delivery)),
            b"",
            {
                EXPECTED_STREAM_HEADER: self._stream,
                MSG_ID_HEADER: delivery.message_id,
                EXPECTED_LAST_ID_HEADER: f"none.{uuid4().hex}",
            },
        )
        try:
            return None if answer is None else _DUPLICATE.decode(answer).duplicate
        except msgspec.MsgspecError:
            return None

    def _incoming(self, delivery: Delivery, result_headers: dict[str, str]) -> Incoming:
        headers = {name.lower(): text for name, text in delivery.headers.items()}
        if delivery.headers_unreadable:
            headers = {UNREADABLE_HEADERS: "1"}
        return Incoming(
            shared=is_shared(delivery.payload, headers.get(CONTENT_TYPE.lower())),
            payload=delivery.payload,
            headers=headers,
            received_s=time.monotonic(),
            reply_bytes_max=self._connection.payload_bytes_max - wire_bytes(b"", result_headers),
            caller=CALLER,
        )

    def _rest(self, subject: str) -> str:
        """Give what follows ``<prefix>.jobs.``; empty when a subject cannot be made with it.

        A server takes messages whose subject has wildcards in it, white space of other scripts,
        or bytes that are not UTF-8 (here: U+FFFD).
        """
        if not subject.startswith(self._prefix):
            return ""
        rest = subject.removeprefix(self._prefix)
        return rest if all(map(_TOKEN.fullmatch, rest.split("."))) else ""


def is_shared(payload: bytes, content_type: str | None) -> bool:
    """Tell a ``score_shared`` request from a ``score`` request by its field ``decisions``.

    What cannot be read is either: reading it in earnest gives the error.
    """
    try:
        in_json = codec_for(content_type).media_type == JSON
        kind = _KIND_JSON.decode(payload) if in_json else _KIND_MSGPACK.decode(payload)
    except (SemifError, msgspec.MsgspecError, RecursionError):
        return False
    return bool(kind.decisions)
