"""The state of the process, forward only, and the heartbeat that tells it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import IntEnum

from actor import __version__
from actor.engine.base import Engine
from actor.scheduling.admission import Admission
from actor.scheduling.scheduler import Scheduler
from actor.settings import Settings
from actor.telemetry.meter import Meter
from schemas.health import (
    BusHealth,
    CanaryHealth,
    Heartbeat,
    PipelineHealth,
    ProofReport,
    QueueHealth,
)

__all__ = ["Life", "State", "rfc3339"]


class State(IntEnum):
    """States in the order they are passed through; ``FAILED`` ends any of them."""

    STARTING = 0
    PROVING = 1
    READY = 2
    DRAINING = 3
    STOPPED = 4
    FAILED = 5


class Life:
    """What the actor is doing. Everything is called on the event loop.

    The parts appear one after the other; what is not there yet shows as empty.
    """

    def __init__(self, settings: Settings, meter: Meter, admission: Admission) -> None:
        self._settings = settings
        self._meter = meter
        self._admission = admission
        self._started = time.monotonic()
        self._state = State.STARTING
        self._reason: str | None = None
        self._proofs: list[ProofReport] = []
        self.proof: str | None = None
        self.engine: Engine | None = None
        self.scheduler: Scheduler | None = None

    @property
    def state(self) -> State:
        """The state now."""
        return self._state

    @property
    def proofs(self) -> tuple[ProofReport, ...]:
        """The start report so far."""
        return tuple(self._proofs)

    def enter(self, state: State, reason: str | None = None) -> None:
        """Go forward to ``state``. Going back, or leaving an end, is a bug."""
        if state <= self._state or self._state is State.STOPPED:
            raise AssertionError(f"from {self._state.name} to {state.name}: a bug")
        self._state = state
        self._reason = reason

    def report(self, proof: ProofReport) -> None:
        """Take the news of a proof: its start, or its end in place of its start."""
        if self._proofs and self._proofs[-1].outcome == "running":
            self._proofs.pop()
        self._proofs.append(proof)

    def heartbeat(
        self, sequence: int, bus: BusHealth, pipeline: PipelineHealth | None = None
    ) -> Heartbeat:
        """Give the heartbeat of this moment."""
        return Heartbeat(
            instance=self._settings.instance,
            state=self._state.name.lower(),
            reason=self._reason,
            sequence=sequence,
            time=rfc3339(datetime.now(UTC)),
            interval_s=self._settings.heartbeat_s,
            uptime_s=round(time.monotonic() - self._started, 3),
            version=__version__,
            scorer=self._settings.scorer,
            proof=self.proof,
            proofs=self.proofs,
            queue=self._queue(),
            counters=self._meter.counters(),
            latency=self._meter.latency(),
            canary=self._canary(),
            bus=bus,
            pipeline=pipeline,
            engine=self.engine.health() if self.engine else None,
        )

    def _queue(self) -> QueueHealth:
        scheduler = self.scheduler
        return QueueHealth(
            jobs=self._admission.jobs,
            jobs_max=self._admission.jobs_max,
            bytes=self._admission.bytes,
            bytes_max=self._admission.bytes_max,
            tokens=self._admission.tokens,
            tokens_max=self._admission.tokens_max,
            in_flight=scheduler.in_flight if scheduler else 0,
            oldest_ms=scheduler.oldest_ms() if scheduler else 0.0,
        )

    def _canary(self) -> CanaryHealth:
        if self.scheduler is None or self.scheduler.canary_ok is None:
            return CanaryHealth(runs=0, last_ok=None)
        return CanaryHealth(
            runs=self.scheduler.canary_runs, last_ok=rfc3339(self.scheduler.canary_ok)
        )


def rfc3339(moment: datetime) -> str:
    """Give a moment in UTC as it is written on the wire."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
