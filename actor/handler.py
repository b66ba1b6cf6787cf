"""One request's line: admit -> decode -> encode the prompt -> admit its tokens -> queue -> reply.

Knows no bus. Whatever happens on the way, :meth:`Handler.handle` gives exactly one reply (INV-1);
every exception becomes an error of the table here, and nowhere else.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import structlog

from actor.engine.base import Engine, Work
from actor.scheduling.admission import Admission
from actor.scheduling.prepare_thread import PrepareThread
from actor.scheduling.scheduler import Scheduler
from actor.settings import Settings
from actor.telemetry.endpoint_stats import EndpointCounters
from actor.telemetry.meter import Meter
from actor.wire import (
    Incoming,
    Record,
    Reply,
    answer_reply,
    answer_to_score,
    answer_to_shared,
    error_reply,
    is_background,
    read_timeout_s,
    read_work,
)
from schemas.codec import Codec, codec_for
from schemas.decision import ServedBy, Timing
from schemas.errors import DeadlineExceeded, Draining, ScoringFailed, SemifError
from schemas.subjects import CONTENT_TYPE, SCORE, SCORE_SHARED, TRACEPARENT_HEADER

__all__ = ["Handler"]

_log = structlog.get_logger()

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
"""W3C Trace Context, version 00. The log takes nothing else from a caller."""

FORESEEN = (Exception, asyncio.CancelledError)
"""What becomes an error of the table. A cancellation too: the drain's deadline cancelled the task,
or something cancelled a future it awaits; either way a caller is waiting.
"""


class Handler:
    """Answers requests, many at a time, on the event loop."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        scheduler: Scheduler,
        *,
        admission: Admission,
        meter: Meter,
        counters: EndpointCounters,
        proof: str,
    ) -> None:
        self._settings = settings
        self._scheduler = scheduler
        self._admission = admission
        self._meter = meter
        self._counters = counters
        self._served_by = ServedBy(instance=settings.instance, scorer=engine.scorer, proof=proof)
        self._encoder = PrepareThread(engine.prepare)

    def close(self) -> None:
        """Let the worker thread go."""
        self._encoder.close()

    async def handle(self, incoming: Incoming) -> Reply:
        """Answer one request, and count it. Raises nothing."""
        codec = codec_for(None)
        try:
            codec = codec_for(incoming.headers.get(CONTENT_TYPE.lower()))
            reply = await self._answer(incoming, codec)
        except FORESEEN as error:
            return self._refuse(_explained(error, incoming), incoming, codec)
        seconds = time.monotonic() - incoming.received_s
        self._meter.answer(seconds)
        self._counters.observe(SCORE_SHARED if incoming.shared else SCORE, seconds)
        return reply

    async def answer(self, incoming: Incoming) -> Reply:
        """Answer a request that is counted elsewhere; raises :class:`SemifError` alone."""
        try:
            return await self._answer(
                incoming, codec_for(incoming.headers.get(CONTENT_TYPE.lower()))
            )
        except FORESEEN as error:
            raise _explained(error, incoming) from None

    async def decide(self, work: Work, *, nbytes: int, caller: str) -> Record:
        """Answer ``work`` that came in ``nbytes``, within the default timeout.

        For work that no request asked; raises :class:`SemifError` alone.
        """
        received_s = time.monotonic()
        timeout_s = self._settings.timeout_ms_default / 1000
        try:
            with self._admission.permit(nbytes, caller=caller, within_s=timeout_s):
                return await self._score(
                    work, caller, received_s, timeout_s=timeout_s, background=False
                )
        except FORESEEN as error:
            raise _explained(error) from None

    def refuse_unread(self, incoming: Incoming) -> Reply:
        """Refuse a request for which there is no room even to read it."""
        limit = self._admission.jobs_max
        error = self._admission.refusal("The queue is full by count", limit, "requests")
        return self._refuse(error, incoming, codec_for(None))

    async def _answer(self, incoming: Incoming, codec: Codec[Any]) -> Reply:
        timeout_s = read_timeout_s(incoming.headers, self._settings)
        background = is_background(incoming.headers)
        # Before the body is read: a refusal must stay cheap, or an overload feeds itself.
        with self._admission.permit(
            len(incoming.payload),
            caller=incoming.caller,
            within_s=timeout_s,
            background=background,
        ):
            work = read_work(incoming, codec, self._settings)
            record = await self._score(
                work,
                incoming.caller,
                incoming.received_s,
                timeout_s=timeout_s,
                background=background,
            )
            return answer_reply(record, codec, reply_bytes_max=incoming.reply_bytes_max)

    async def _score(
        self, work: Work, caller: str, received_s: float, *, timeout_s: float, background: bool
    ) -> Record:
        """Encode, queue and score ``work``; ``TimeoutError`` when the time is over."""
        deadline_s = received_s + timeout_s
        started_s = time.monotonic()
        async with asyncio.timeout(deadline_s - started_s):
            prepared = await self._encoder.prepare(work)
            encoded_s = time.monotonic()
            if encoded_s >= deadline_s:  # the loop's timer may be later than its time
                raise DeadlineExceeded
            with self._admission.permit_tokens(
                prepared.tokens,
                caller=caller,
                within_s=deadline_s - encoded_s,
                background=background,
            ):
                answer = await self._scheduler.answer(
                    prepared, caller=caller, deadline_s=deadline_s, background=background
                )
        scores = answer.scores
        timing = Timing(
            queue_ms=answer.queue_ms,
            encode_ms=(encoded_s - started_s) * 1000,
            forward_ms=scores.forward_ms,
            total_ms=(time.monotonic() - received_s) * 1000,
            batch_rows=scores.batch_rows,
            prefix_tokens_reused=scores.prefix_tokens_reused,
        )
        if work.shared:
            return answer_to_shared(work, scores, timing, self._served_by)
        return answer_to_score(scores, timing, self._served_by)

    def _refuse(self, error: SemifError, incoming: Incoming, codec: Codec[Any]) -> Reply:
        self._meter.refused[error.code] += 1
        seconds = time.monotonic() - incoming.received_s
        self._counters.observe(SCORE_SHARED if incoming.shared else SCORE, seconds, error)
        return error_reply(error, codec)


def _explained(error: BaseException, incoming: Incoming | None = None) -> SemifError:
    """Give the row of the error table for whatever went wrong."""
    if isinstance(error, SemifError):
        return error
    if isinstance(error, TimeoutError):
        return DeadlineExceeded()
    if isinstance(error, asyncio.CancelledError):
        return Draining()
    given = incoming.headers.get(TRACEPARENT_HEADER, "") if incoming else ""
    trace = given if _TRACEPARENT.match(given) else None
    _log.error("a request failed in a way nobody foresaw: a bug", traceparent=trace, exc_info=error)
    return ScoringFailed()
