"""What every measurement needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from actor.bus.client import BusClient
from actor.cli.bench.records import BenchFailed
from actor.settings import Settings
from schemas.subjects import Subjects

__all__ = ["Bench"]


@dataclass(frozen=True, slots=True)
class Bench:
    """The server, a client of it, and how much is to be measured."""

    url: str
    client: BusClient
    settings: Settings
    """The actor's, for what the measurements must know of it."""
    environment: Mapping[str, str]
    """The environment of the actors that are started."""
    folder: Path
    """For logs, as long as the run lasts."""
    rounds: int
    overload_s: float
    tell: Callable[[str], None]
    """Shows what is being done."""

    @property
    def subjects(self) -> Subjects:
        """The subjects of the actors that are started."""
        return Subjects(self.settings.subject_prefix)

    async def ask(self, payload: bytes, *, shared: bool) -> float:
        """Ask the actor, give the seconds to its answer; an error ends the measurement."""
        started = time.perf_counter()
        timeout_s = self.settings.timeout_ms_max / 1000
        response = await self.client.ask(payload, shared=shared, timeout_s=timeout_s)
        seconds = time.perf_counter() - started
        if response.error is not None:
            error = response.error
            raise BenchFailed(f"the actor answered {error.status} {error.code}: {error.message}")
        return seconds
