"""The life of the process, told top-down: connect, prove, subscribe, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import partial
from typing import TypeVar

import structlog

from actor.bus.connection import BusLost, Connection, Refusal
from actor.bus.discovery import ENDPOINTS
from actor.bus.heartbeat import HeartbeatPublisher
from actor.engine.base import CanaryFailed, Engine, ProofFailed
from actor.engine.ledger import Ledger, Refuted
from actor.life import Life, State
from actor.rules.rule import Rule
from actor.rules.rulefile import RulesError, load
from actor.scheduling.admission import Admission
from actor.scheduling.gpu_thread import EngineDied, GpuThread
from actor.serving import Serving
from actor.settings import Settings
from actor.tasks import end
from actor.telemetry.endpoint_stats import EndpointCounters
from actor.telemetry.meter import Meter
from schemas.health import BusHealth, Heartbeat, ProofReport
from schemas.subjects import STATUS

__all__ = ["Exit", "Prove", "serve"]

_log = structlog.get_logger()

Result = TypeVar("Result")
Prove = Callable[[Settings, Ledger], Engine]

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

    engine = prove(settings, ledger)
    # What the start made lives as long as the process. A full collection would walk it every time,
    # while nothing else runs, not even a refusal: longer than many a batch takes.
    gc.collect()
    gc.freeze()
    return engine


async def serve(settings: Settings, prove: Prove = _prove_engine) -> Exit:
    """Run an actor to its end and give the exit code."""
    try:
        rules = _rules(settings)
    except RulesError as error:
        for mistake in error.mistakes:
            _log.error("a mistake in the rule file", file=str(settings.rules), text=str(mistake))
        return Exit.SETTINGS
    process = _Process(settings, rules)
    try:
        await process.unless_stopped(process.connection.open())
        await process.beat()
        heartbeats = asyncio.create_task(process.heartbeat.run(), name="heartbeats")
        process.heartbeats = heartbeats
        try:
            return await process.run(prove)
        finally:
            await end(heartbeats)
            await process.beat()
    except BusLost as error:
        _log.error("no connection to NATS", reason=str(error))
        return Exit.BUS_LOST
    except _Stop:
        return Exit.CLEAN
    finally:
        await process.close()


def _rules(settings: Settings) -> tuple[Rule, ...]:
    return load(settings.rules, prefix=settings.subject_prefix) if settings.rules else ()


class _Process:
    """The parts that live from the first second, and the story in :meth:`run`."""

    def __init__(self, settings: Settings, rules: tuple[Rule, ...]) -> None:
        self.settings = settings
        self.rules = rules
        self.meter = Meter()
        self.counters = EndpointCounters(ENDPOINTS)
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
            self._snapshot,
            on_status=partial(self.counters.observe, STATUS),
        )
        self.heartbeats: asyncio.Task[None] | None = None
        self.serving: Serving | None = None
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
        except BusLost as error:
            return self.fail(Exit.BUS_LOST, str(error))
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
        serving = self.serving = Serving(
            self.settings,
            engine,
            gpu=self.gpu,
            admission=self.admission,
            meter=self.meter,
            counters=self.counters,
            connection=self.connection,
            heartbeat=self.heartbeat,
            proof=proof,
            rules=self.rules,
        )
        self.life.scheduler = serving.scheduler
        try:
            await self.prove_bus(serving)
            self.life.proof = proof
            self.enter(State.READY)
            await self.unless_stopped(serving.run())
        except _Stop:
            self.enter(State.DRAINING, "told to stop")
            return await serving.drain(within_s=self.settings.drain_s, hurry=self.hurry)
        finally:
            # On the way out of a failure too: no request may reach a model that is not trusted.
            await serving.close()
        raise AssertionError("the scheduler ended without an error: a bug")

    async def prove_bus(self, serving: Serving) -> None:
        """Subscribe, and be sure that the server lets us."""
        try:
            with self.ledger.proof("bus") as note:
                try:
                    found = await self.unless_stopped(serving.subscribe())
                except Refusal as error:
                    raise Refuted(str(error)) from None
                size = f"max_payload {self.connection.payload_bytes_max} bytes"
                note.detail = f"subscribed; {size}; {found}"
        except ProofFailed as error:
            if isinstance(error.__cause__, (_Stop, BusLost)):  # broken off, not failed
                raise error.__cause__ from None
            raise

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
                raise BusLost(self.connection.incidents.lost_reason)
            raise _Stop
        finally:
            await end(task, stop, lost)

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

    def _snapshot(self, sequence: int) -> Heartbeat:
        pipeline = self.serving.pipeline.health() if self.serving else None
        return self.life.heartbeat(sequence, self._bus_health(), pipeline)

    def _bus_health(self) -> BusHealth:
        connection, intake = self.connection, self.serving.intake if self.serving else None
        return BusHealth(
            reconnects=connection.incidents.reconnects,
            moves=connection.moves,
            queue_group=self.settings.queue_group,
            taking=intake.taking if intake else False,
            steps_out=intake.steps_out if intake else 0,
            dropped_unsent=connection.incidents.dropped_unsent,
            dropped_by_client=connection.incidents.dropped_by_client,
            publishes_refused=connection.incidents.publishes_refused,
        )

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
