"""Work that nobody waits for at the bus: jobs of a stream, and events by rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from actor.bus.asking import Asker
from actor.bus.connection import Connection
from actor.bus.dead_letters import DeadLetters
from actor.bus.jobs import CALLER as JOBS_CALLER
from actor.bus.jobs import Jobs
from actor.bus.pull_worker import PullWorker, source_of
from actor.bus.rule_runner import RuleRunner
from actor.handler import Handler
from actor.rules.rule import Rule
from actor.settings import Settings
from schemas.health import PipelineHealth

__all__ = ["Pipeline"]

JOBS = "jobs"
"""Name of the jobs' source; a rule may have it too, and is then ``rule jobs``."""


class Pipeline:
    """Owns the workers of jobs and rules, as far as the settings ask for them."""

    def __init__(
        self,
        settings: Settings,
        rules: Sequence[Rule],
        connection: Connection,
        handler: Handler,
        *,
        room: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        """``room`` tells how many more of either could begin now."""
        self._asker = Asker(connection)
        dead_letters = DeadLetters(settings, connection, self._asker)
        self._jobs: PullWorker | None = None
        self._rules: RuleRunner | None = None
        if settings.jobs:
            jobs = Jobs(settings, connection, self._asker, handler.answer)
            self._jobs = PullWorker(
                connection,
                self._asker,
                source_of(
                    settings,
                    name=JOBS,
                    stream=settings.jobs_stream,
                    durable=settings.jobs_durable,
                ),
                room=room,
                process=jobs.process,
                dead_letters=dead_letters,
                rest_of=jobs.rest_of,
                done_already=jobs.has_result,
                changed=changed,
            )
        if rules:
            self._rules = RuleRunner(
                settings,
                rules,
                connection=connection,
                asker=self._asker,
                handler=handler,
                dead_letters=dead_letters,
                room=room,
                changed=changed,
            )
        self._workers = [worker for worker in (self._jobs, self._rules) if worker is not None]

    async def open(self) -> None:
        """Subscribe; whether the server allows it is known after ``confirm``."""
        if self._workers:
            await self._asker.open()
        for worker in self._workers:
            await worker.open()

    async def run(self) -> None:
        """Work until :meth:`stop`; raises what is a bug. May be cancelled."""
        async with asyncio.TaskGroup() as group:
            for worker in self._workers:
                group.create_task(worker.run())

    async def stop(self) -> None:
        """Take no more; safe to repeat."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    def callers(self) -> list[str]:
        """Give as whom is asked what can be given back: jobs, and events of streams."""
        jobs = [JOBS_CALLER] if self._jobs is not None else []
        return jobs + ([] if self._rules is None else self._rules.callers())

    async def idle(self) -> None:
        """Wait until all that was taken has its end."""
        await asyncio.gather(*(worker.idle() for worker in self._workers))

    async def abandon(self) -> int:
        """End all that is left; give how much that was."""
        return sum([await worker.abandon() for worker in self._workers])

    async def close(self) -> None:
        """Listen no more; after :meth:`abandon`."""
        await self._asker.close()

    def health(self) -> PipelineHealth | None:
        """Give the heartbeat's record; None when there are neither jobs nor rules."""
        if not self._workers:
            return None
        sources = {} if self._rules is None else self._rules.health()
        if self._jobs is not None:
            if JOBS in sources:
                sources[f"rule {JOBS}"] = sources.pop(JOBS)
            sources[JOBS] = self._jobs.health()
        return PipelineHealth(sources=sources)
