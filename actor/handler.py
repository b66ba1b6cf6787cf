"""One request's line: admit -> decode -> encode the prompt -> admit its tokens -> queue -> reply.

Knows no bus. Whatever happens on the way, :meth:`Handler.handle` gives exactly one reply (INV-1);
every exception becomes one here, and nowhere else.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from actor.engine.base import Engine
from actor.scheduling.admission import Admission
from actor.scheduling.prepare_thread import PrepareThread
from actor.scheduling.scheduler import Scheduler
from actor.settings import Settings
from actor.telemetry.meter import Meter
from actor.wire import (
    Incoming,
    Reply,
    answer_reply,
    answer_to_score,
    answer_to_shared,
    error_reply,
    read_timeout_s,
    read_work,
)
from schemas.codec import Codec, codec_for
from schemas.decision import ServedBy, Timing
from schemas.errors import DeadlineExceeded, Draining, ScoringFailed, SemifError
from schemas.subjects import CONTENT_TYPE, TRACEPARENT_HEADER

__all__ = ["Handler"]

_log = structlog.get_logger()


class Handler:
    """Answers requests, many at a time, on the event loop."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        scheduler: Scheduler,
        admission: Admission,
        meter: Meter,
        *,
        proof: str,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._scheduler = scheduler
        self._admission = admission
        self._meter = meter
        self._served_by = ServedBy(instance=settings.instance, scorer=engine.scorer, proof=proof)
        self._loop = asyncio.get_running_loop()
        self._encoder = PrepareThread(engine.prepare)

    def close(self) -> None:
        """Let the worker thread go."""
        self._encoder.close()

    async def handle(self, incoming: Incoming) -> Reply:
        """Answer one request. Raises nothing; a cancellation answers ``draining``."""
        codec = codec_for(None)
        try:
            codec = codec_for(incoming.headers.get(CONTENT_TYPE.lower()))
            reply = await self._answer(incoming, codec)
        except SemifError as error:
            return self._refuse(error, codec)
        except TimeoutError:
            return self._refuse(DeadlineExceeded(), codec)
        except asyncio.CancelledError:
            # The drain's deadline cancelled this task, or something cancelled a future it awaits.
            # Either way a caller is waiting, and gets its one reply.
            return self._refuse(Draining(), codec)
        except Exception:  # noqa: BLE001 - a caller waits, whatever happened
            trace = incoming.headers.get(TRACEPARENT_HEADER)
            _log.exception("a request failed in a way nobody foresaw: a bug", traceparent=trace)
            return self._refuse(ScoringFailed(), codec)
        self._meter.answer(self._loop.time() - incoming.received_s)
        return reply

    def refuse_unread(self) -> Reply:
        """Refuse a message for which there is no room even to read it."""
        limit = self._admission.jobs_max
        error = self._admission.refusal("The queue is full by count", limit, "requests")
        return self._refuse(error, codec_for(None))

    async def _answer(self, incoming: Incoming, codec: Codec[Any]) -> Reply:
        timeout_s = read_timeout_s(incoming.headers, self._settings)
        deadline_s = incoming.received_s + timeout_s
        # Before the body is read: a refusal must stay cheap, or an overload feeds itself.
        with self._admission.permit(len(incoming.payload), within_s=timeout_s):
            work = read_work(incoming, codec, self._settings)
            async with asyncio.timeout_at(deadline_s):
                started_s = self._loop.time()
                prepared = await self._encoder.prepare(work)
                encode_ms = (self._loop.time() - started_s) * 1000
                left_s = deadline_s - self._loop.time()
                with self._admission.permit_tokens(prepared.tokens, within_s=left_s):
                    answer = await self._scheduler.answer(prepared, caller=incoming.caller)
        scores = answer.scores
        timing = Timing(
            queue_ms=answer.queue_ms,
            encode_ms=encode_ms,
            forward_ms=scores.forward_ms,
            total_ms=(self._loop.time() - incoming.received_s) * 1000,
            batch_rows=scores.batch_rows,
            prefix_tokens_reused=scores.prefix_tokens_reused,
        )
        record = (
            answer_to_shared(work, scores, timing, self._served_by)
            if work.shared
            else answer_to_score(scores, timing, self._served_by)
        )
        return answer_reply(record, codec, reply_bytes_max=incoming.reply_bytes_max)

    def _refuse(self, error: SemifError, codec: Codec[Any]) -> Reply:
        self._meter.refused[error.code] += 1
        return error_reply(error, codec)
