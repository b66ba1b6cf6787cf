"""The life of the process, told top-down: connect, prove, subscribe, serve, drain, stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import structlog

from actor.bus.connection import BusLost, Connection
from actor.bus.heartbeat import HeartbeatPublisher
from actor.bus.request_reply import RequestReply
from actor.engine.base import CanaryFailed, Engine, ProofFailed
from actor.engine.ledger import Ledger
from actor.handler import Handler
from actor.life import Life, State
from actor.scheduling.admission import Admission
from actor.scheduling.batcher import Batcher
from actor.scheduling.gpu_thread import EngineDied, GpuThread
from actor.scheduling.scheduler import Scheduler
from actor.settings import Settings
from actor.telemetry.meter import Meter
from schemas.health import ProofReport

__all__ = ["Exit", "Prove", "serve"]

_log = structlog.get_logger()

Result = TypeVar("Result")
Prove = Callable[[Settings, Ledger], Engine]

LAST_REPLIES_S = 5.0
"""Seconds for the last replies after the scheduler has ended."""
GPU_STOP_S = 2.0
"""Seconds for the GPU thread to end; a call into the device cannot be cancelled."""


class Exit(IntEnum):
    """Exit codes. A supervisor restarts on all but 0 and 2."""

    CLEAN = 0
    SETTINGS = 2
    PROOF_FAILED = 3
    ENGINE_FAILED = 4
    WORK_ABANDONED = 5
    BUS_LOST = 6


class _Stop(Exception):
    """SIGTERM or SIGINT came."""


def _prove_engine(settings: Settings, ledger: Ledger) -> Engine:
    from actor.engine.proofs import prove  # noqa: PLC0415 - torch: seconds, on the GPU thread

    return prove(settings, ledger)


async def serve(settings: Settings, prove: Prove = _prove_engine) -> Exit:
    """Run an actor to its end and give the exit code."""
    process = _Process(settings)
    try:
        await process.unless_stopped(process.connection.open())
        await process.beat()
        heartbeats = asyncio.create_task(process.heartbeat.run(), name="heartbeats")
        process.heartbeats = heartbeats
        try:
            return await process.run(prove)
        finally:
            await _end(heartbeats)
            await process.beat()
    except BusLost as error:
        _log.error("no connection to NATS", reason=str(error))
        return Exit.BUS_LOST
    except _Stop:
        return Exit.CLEAN
    finally:
        await process.close()


class _Process:
    """The parts that live from the first second, and the story in :meth:`run`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meter = Meter()
        self.admission = Admission(
            jobs_max=settings.queue_jobs_max,
            bytes_max=settings.queue_bytes_max,
            tokens_max=settings.queue_tokens_max,
        )
        self.life = Life(settings, self.meter, self.admission)
        self.connection = Connection(settings, on_unreadable=self.meter.drop_unreadable)
        self.heartbeat = HeartbeatPublisher(
            settings,
            self.connection,
            lambda sequence: self.life.heartbeat(sequence, reconnects=self.connection.reconnects),
        )
        self.heartbeats: asyncio.Task[None] | None = None
        self.gpu = GpuThread()
        self.loop = asyncio.get_running_loop()
        self.ledger = Ledger(self._on_proof)
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._on_signal)

    async def run(self, prove: Prove) -> Exit:
        """Prove, subscribe, serve, drain. Every way out has its exit code here."""
        try:
            self.enter(State.PROVING)
            proving = self.gpu.run(partial(prove, self.settings, self.ledger))
            self.life.engine = await self.unless_stopped(proving)
            abandoned = await self.serve_with(self.life.engine)
        except ProofFailed as error:
            return self.fail(Exit.PROOF_FAILED, f"{error.proof}: {error.reason}")
        except CanaryFailed as error:
            return self.fail(Exit.ENGINE_FAILED, f"canary: {error}")
        except EngineDied:
            return self.fail(Exit.ENGINE_FAILED, "the GPU thread has ended")
        except BusLost:
            return self.fail(Exit.BUS_LOST, "the connection to NATS is gone for good")
        except _Stop:  # while proving: there is nothing to drain
            abandoned = 0
        except Exception as error:  # noqa: BLE001 - a bug, and still the heartbeat must say so
            _log.exception("the actor failed in a way nobody foresaw: a bug")
            return self.fail(Exit.ENGINE_FAILED, f"a bug: {type(error).__name__}")
        self.enter(State.STOPPED)
        if abandoned:
            _log.warning("the drain's deadline passed", abandoned=abandoned)
        return Exit.WORK_ABANDONED if abandoned else Exit.CLEAN

    async def serve_with(self, engine: Engine) -> int:
        """Serve until told to stop, then drain; gives the number of requests abandoned."""
        proof = self.ledger.hash()  # before the bus proof: the server is no part of it
        serving = _Serving(self, engine, proof=proof)
        try:
            with self.ledger.proof("bus") as note:
                await serving.subscribe()
                note.detail = f"subscribed; max_payload {self.connection.payload_bytes_max} bytes"
            self.life.proof = proof
            self.enter(State.READY)
            # A shield: to be told to stop must not end the scheduler, the drain needs it.
            await self.unless_stopped(asyncio.shield(serving.scoring))
        except _Stop:
            self.enter(State.DRAINING, "told to stop")
            return await serving.drain(within_s=self.settings.drain_s, hurry=self.hurry)
        finally:
            # On the way out of a failure too: no request may reach a model that is not trusted.
            await serving.close()
        raise AssertionError("the scheduler ended without an error: a bug")

    async def unless_stopped(self, work: Awaitable[Result]) -> Result:
        """Await ``work``; raises :class:`_Stop` or :class:`BusLost` when that comes first."""
        task = asyncio.ensure_future(work)
        stop = asyncio.create_task(self.stop.wait())
        lost = asyncio.create_task(self.connection.lost.wait())
        watched = {task, stop, lost, *filter(None, [self.heartbeats])}
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if self.heartbeats is not None and self.heartbeats.done():
                self.heartbeats.result()  # they end by a bug alone: raise it, silence is no answer
            if lost.done():
                raise BusLost
            raise _Stop
        finally:
            await _end(task, stop, lost)

    def enter(self, state: State, reason: str | None = None) -> None:
        """Change the state and let a heartbeat say so."""
        self.life.enter(state, reason)
        self.heartbeat.changed()
        _log.info(state.name.lower(), reason=reason, instance=self.settings.instance)

    def fail(self, code: Exit, reason: str) -> Exit:
        """Enter ``failed`` and give the exit code."""
        _log.error("not serving", exit_code=int(code), reason=reason)
        self.enter(State.FAILED, reason)
        return code

    async def beat(self) -> None:
        """Publish the first or the last heartbeat; what keeps it must not hide the exit code."""
        try:
            await self.heartbeat.publish()
        except Exception:  # noqa: BLE001 - see above
            _log.exception("no heartbeat: a bug")

    async def close(self) -> None:
        """End what lives from the first second."""
        await self.connection.close()
        if not await self.gpu.stop(within_s=GPU_STOP_S):
            _log.warning("the GPU thread is left behind in a call")
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()

    def _on_proof(self, proof: ProofReport) -> None:
        """Called on the GPU thread."""
        self.loop.call_soon_threadsafe(self._take_proof, proof)

    def _take_proof(self, proof: ProofReport) -> None:
        self.life.report(proof)
        self.heartbeat.changed()
        if proof.outcome != "running":
            _log.info(
                f"proof {proof.outcome}",
                proof=proof.name,
                seconds=proof.seconds,
                detail=proof.detail,
            )


class _Serving:
    """The parts that exist only behind a proved engine."""

    def __init__(self, process: _Process, engine: Engine, *, proof: str) -> None:
        settings, admission, meter = process.settings, process.admission, process.meter
        # SemIf's own functions take one request: the others' answers should not wait for the last.
        rows_max = settings.batch_rows_max if settings.scorer == "fast" else 1
        batcher = Batcher(tokens_max=settings.batch_tokens_max, rows_max=rows_max)
        self.scheduler = Scheduler(
            engine, process.gpu, admission, batcher, canary_s=settings.canary_s
        )
        self.handler = Handler(settings, engine, self.scheduler, admission, meter, proof=proof)
        self.requests = RequestReply(settings, process.connection, self.handler, meter)
        self.connection = process.connection
        self.heartbeat = process.heartbeat
        process.life.scheduler = self.scheduler
        self.scoring = asyncio.create_task(self.scheduler.run(), name="scheduler")

    async def subscribe(self) -> None:
        """Take requests, and make sure that the server lets us."""
        await self.heartbeat.subscribe_status()
        await self.requests.subscribe()
        await self.connection.confirm()

    async def drain(self, *, within_s: float, hurry: asyncio.Event) -> int:
        """Answer what was accepted; gives how many requests were abandoned instead.

        Unsubscribes first: callers get an instant no-responders, other actors take over.
        """
        await self.requests.stop_intake()
        await _first_of(self.requests.idle(), hurry.wait(), within_s=within_s)
        abandoned = await self.requests.abandon()
        if self.scoring.done():
            self.scoring.result()  # the engine failed meanwhile: raise it
        return abandoned

    async def close(self) -> None:
        """Stop taking requests and answer all that are left; safe after :meth:`drain`."""
        await self.requests.stop_intake()
        await _end(self.scoring)
        await _first_of(self.requests.idle(), within_s=LAST_REPLIES_S)
        await self.requests.abandon()
        await self.heartbeat.end_status()
        self.handler.close()


async def _first_of(*work: Coroutine[Any, Any, object], within_s: float) -> None:
    """Wait for whichever is first, or for the time to pass, and end the others."""
    tasks = [asyncio.create_task(each) for each in work]
    await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    await _end(*tasks)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their end; their results are of no interest any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
