"""Hands the next batch to the GPU thread whenever it is free, and the answers back."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from actor.engine.base import Engine, Outcome, Prepared, Scores
from actor.scheduling.admission import Admission
from actor.scheduling.gpu_thread import GpuThread
from actor.scheduling.job import Answer, Job
from actor.scheduling.lanes import Lanes
from schemas.errors import Draining, OutOfMemory, ScoringFailed, SemifError

__all__ = ["Scheduler"]


class Scheduler:
    """The owner of the queue. :meth:`run` is one task; everything else is called on its loop."""

    def __init__(
        self,
        engine: Engine,
        gpu: GpuThread,
        admission: Admission,
        lanes: Lanes,
        *,
        canary_s: float,
    ) -> None:
        self._engine = engine
        self._gpu = gpu
        self._admission = admission
        self._canary_s = canary_s
        self._lanes = lanes
        self._pending: set[Job] = set()
        """All that are not answered, wherever they are: what a bug loses is still failed."""
        self._running: list[Job] = []
        self._started_s = 0.0
        self._sung_s = time.monotonic()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.canary_runs = 0
        self.canary_ok: datetime | None = None

    @property
    def in_flight(self) -> int:
        """Requests that the model works on now."""
        return len(self._running)

    def oldest_ms(self) -> float:
        """Milliseconds that the longest-waiting request has waited."""
        oldest_s = self._lanes.oldest_enqueued_s()
        return 0.0 if oldest_s is None else (time.monotonic() - oldest_s) * 1000

    def running_s(self) -> float:
        """Seconds that the model has worked on the present batch; 0 while it is idle."""
        return time.monotonic() - self._started_s if self._running else 0.0

    async def answer(
        self,
        prepared: Prepared,
        *,
        caller: str,
        deadline_s: float = math.inf,
        background: bool = False,
    ) -> Answer:
        """Queue a request and wait for its scores; raises :class:`SemifError`.

        Requests of one ``caller`` take turns with those of others; ``background`` ones wait until
        no other does. One that cannot be scored by ``deadline_s`` (of ``time.monotonic``) is told
        ``overloaded`` as soon as that is known.

        Cancelling the wait abandons the request: it is dropped if it has not started.
        """
        if self._closed:
            raise Draining
        future: asyncio.Future[Answer] = self._loop.create_future()
        job = Job(prepared, caller, time.monotonic(), future, deadline_s, background)
        self._pending.add(job)
        self._lanes.append(job)
        self._wake.set()
        try:
            return await job.future
        finally:
            # Its permit is given back now: what it holds must go too, not wait for the GPU.
            self._lanes.discard(job)
            self._pending.discard(job)

    async def run(self) -> None:
        """Score until cancelled. Raises ``CanaryFailed`` or ``EngineDied``, having failed all jobs.

        A request never started is told ``draining`` (another actor may have it), the one that
        was running ``scoring_failed``.
        """
        try:
            while True:
                if self._canary_due_in_s() <= 0:  # also under load: garbage comes at any time
                    await self._canary()
                # Not before the GPU is free: what comes meanwhile still gets into the batch.
                self._running = self._lanes.next_batch()
                if self._running:
                    await self._score(self._running)
                else:
                    await self._work_arrives()
        finally:
            self._fail_all()

    def release(self, caller: str) -> None:
        """Refuse what one caller has waiting, for another actor to take; what runs goes on."""
        for job in self._pending - set(self._running):
            if job.caller == caller:
                _fail(job, Draining())

    def close(self) -> None:
        """Refuse what has not started; what runs goes on."""
        self._closed = True
        for job in self._lanes.take_all():
            _fail(job, Draining())

    async def _work_arrives(self) -> None:
        """Wait for a job, or until the canary is due."""
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._canary_due_in_s()):
                await self._wake.wait()

    def _canary_due_in_s(self) -> float:
        return self._sung_s + self._canary_s - time.monotonic()

    async def _score(self, batch: list[Job]) -> None:
        started_s = self._started_s = time.monotonic()
        prepared = [job.prepared for job in batch]
        outcomes = await self._gpu.run(partial(self._engine.score, prepared))
        self._admission.observe(
            time.monotonic() - started_s,
            jobs=len(batch),
            tokens=sum(job.tokens for job in batch),
        )
        for job, outcome in zip(batch, outcomes, strict=True):
            job.resolve(outcome, started_s=started_s)
        self._running = []  # only now: a job without an outcome is still failed at the end
        self._refuse_the_late()
        if any(map(_engine_failed, outcomes)):
            await self._canary()

    def _refuse_the_late(self) -> None:
        """Refuse waiting jobs whose deadline the measured rate cannot meet.

        Now that another actor may still have the time, and not when the deadline has passed.
        """
        now_s, tokens = time.monotonic(), 0
        for job in self._lanes.in_turn():
            if job.abandoned:
                continue
            tokens += job.tokens
            if now_s + self._admission.seconds_for(tokens) > job.deadline_s:
                tokens -= job.tokens
                _fail(job, self._admission.too_late(job.deadline_s - now_s))

    async def _canary(self) -> None:
        await self._gpu.run(self._engine.canary)
        self._sung_s = time.monotonic()
        self.canary_runs += 1
        self.canary_ok = datetime.now(UTC)

    def _fail_all(self) -> None:
        self.close()
        for job in self._running:
            _fail(job, ScoringFailed())
        self._running = []
        for job in self._pending:
            _fail(job, Draining())


def _fail(job: Job, error: SemifError) -> None:
    if not job.future.done():
        job.future.set_exception(error)


def _engine_failed(outcome: Outcome) -> bool:
    """True when the engine, not the request, was at fault anywhere in ``outcome``."""
    results = outcome.results if isinstance(outcome, Scores) else (outcome,)
    return any(isinstance(result, OutOfMemory | ScoringFailed) for result in results)
