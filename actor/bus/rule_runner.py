"""The rules of one file at work: each rule reads its source, asks, and publishes to its sinks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

from actor.bus.asking import Asker
from actor.bus.connection import Connection
from actor.bus.core_events import CoreEvents
from actor.bus.dead_letters import DeadLetters
from actor.bus.delivery import Delivery, Done, Hopeless, Retry, Verdict
from actor.bus.pull_worker import PullWorker, source_of
from actor.bus.rule_event import carry_out
from actor.bus.stream_publish import publish_to_stream
from actor.engine.base import Work
from actor.handler import Handler
from actor.rules.outcomes import Stopped
from actor.rules.plan import Limits
from actor.rules.publication import Publication
from actor.rules.rule import CoreSource, Rule, StreamSource
from actor.settings import Settings
from actor.tasks import end, run_until_one_fails
from actor.wire import Record
from schemas.errors import Overloaded, SemifError
from schemas.health import SourceHealth

__all__ = ["RuleRunner"]

FULL_S = 0.25
"""Between two looks of a core subject's event at a queue that is full."""


class RuleRunner:
    """Owns what reads events. Everything is called on the event loop."""

    def __init__(
        self,
        settings: Settings,
        rules: Sequence[Rule],
        *,
        connection: Connection,
        asker: Asker,
        handler: Handler,
        dead_letters: DeadLetters,
        room: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        """``room`` tells how many more events of streams could begin now."""
        self._settings = settings
        self._connection = connection
        self._asker = asker
        self._handler = handler
        self._core = CoreEvents(settings, connection, dead_letters)
        self._core_rules = [rule for rule in rules if isinstance(rule.source, CoreSource)]
        self._workers = {
            rule.name: PullWorker(
                connection,
                asker,
                source_of(
                    settings,
                    name=rule.name,
                    stream=rule.source.stream,
                    durable=rule.source.durable,
                ),
                room=room,
                process=partial(self._process, rule),
                dead_letters=dead_letters,
                rest_of=partial(_rest_of, rule.name),
                changed=changed,
            )
            for rule in rules
            if isinstance(rule.source, StreamSource)
        }

    async def open(self) -> None:
        """Subscribe; whether the server allows it is known after ``confirm``."""
        for rule in self._core_rules:
            if isinstance(rule.source, CoreSource):
                await self._core.open(rule.name, rule.source, partial(self._process, rule))
        for worker in self._workers.values():
            await worker.open()

    async def run(self) -> None:
        """Fetch from streams until :meth:`stop`; raises what is a bug. May be cancelled."""
        tasks = [asyncio.create_task(worker.run()) for worker in self._workers.values()]
        try:
            if tasks:
                await run_until_one_fails(tasks)
        finally:
            await end(*tasks)

    async def stop(self) -> None:
        """Take no more events."""
        await asyncio.gather(self._core.stop(), *(w.stop() for w in self._workers.values()))

    async def idle(self) -> None:
        """Wait until every event that was taken has its outcome."""
        await asyncio.gather(self._core.idle(), *(w.idle() for w in self._workers.values()))

    async def abandon(self) -> int:
        """Give back, or make dead letters of, all that is left; give how many there were."""
        left = [await worker.abandon() for worker in self._workers.values()]
        return sum(left) + await self._core.abandon()

    def callers(self) -> list[str]:
        """Give as whom the events of streams are asked: another actor may have those."""
        return [_caller_of(name) for name in self._workers]

    def health(self) -> dict[str, SourceHealth]:
        """Give the counts of each rule."""
        pulled = {name: worker.health() for name, worker in self._workers.items()}
        return {**self._core.health(), **pulled}

    async def _process(self, rule: Rule, delivery: Delivery) -> Verdict:
        """Bring one event to its outcome; what is published is stored before that is said."""
        after_s = 0.0
        generation: int | None = None

        async def publish(publication: Publication) -> str | None:
            nonlocal generation
            if publication.stream is None and generation is None:
                generation = self._connection.generation
            return await self._publish(publication)

        async def decide(work: Work) -> Record:
            nonlocal after_s
            while True:
                try:
                    return await self._handler.decide(
                        work, nbytes=len(delivery.payload), caller=_caller_of(rule.name)
                    )
                except SemifError as error:
                    after_s = (error.retry_after_ms or 0) / 1000
                    if delivery.stream or not isinstance(error, Overloaded):
                        raise
                # It comes once: it waits, as a burst does, where a stream would give it again.
                await asyncio.sleep(FULL_S * random.uniform(0.5, 1.0))  # noqa: S311 - a spread

        found = await carry_out(rule, delivery, self._limits(), decide, publish)
        if not isinstance(found, Stopped):
            return Done(found.code, generation)
        match found.outcome.action:
            case "retry":
                return Retry(found.outcome.code, found.reason, after_s)
            case "dead":
                return Hopeless(found.outcome.code, found.reason)
            case _:
                return Done(found.outcome.code)

    def _limits(self) -> Limits:
        settings = self._settings
        return Limits(
            settings.request_bytes_max,
            settings.request_depth_max,
            self._connection.payload_bytes_max,
        )

    async def _publish(self, publication: Publication) -> str | None:
        """Publish; to a core subject it is done when the connection took it."""
        subject, payload, headers = publication.subject, publication.payload, publication.headers
        if publication.stream is None:
            sent = await self._connection.publish(subject, payload, headers)
            return None if sent else "there is no connection"
        return await publish_to_stream(
            self._asker.request, publication.stream, subject, payload, headers
        )


def _caller_of(rule: str) -> str:
    """Give who asks, for the turns at the model."""
    return f"$rule.{rule}"


def _rest_of(rule: str, _delivery: Delivery) -> str:
    return f"rules.{rule}"
