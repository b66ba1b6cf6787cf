"""The parts that exist only behind a proved engine, from subscription to the last reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from actor.bus.connection import Connection
from actor.bus.discovery import Discovery, service_metadata
from actor.bus.heartbeat import HeartbeatPublisher
from actor.bus.identity import prove_unique
from actor.bus.intake import Intake, Load
from actor.bus.objects.look import check
from actor.bus.peers import Peers
from actor.bus.pipeline import Pipeline
from actor.bus.request_reply import RequestReply
from actor.engine.base import Engine
from actor.handler import Handler
from actor.rules.rule import Rule
from actor.scheduling.admission import Admission
from actor.scheduling.gpu_thread import GpuThread
from actor.scheduling.lanes import Lanes
from actor.scheduling.scheduler import Scheduler
from actor.settings import Settings
from actor.tasks import end, first_of, run_until_one_fails
from actor.telemetry.endpoint_stats import EndpointCounters
from actor.telemetry.meter import Meter

__all__ = ["Serving"]

LAST_REPLIES_S = 5.0
"""Seconds for the last replies after the scheduler has ended."""
PEER_ANSWERS_S = 0.5
"""Seconds for another actor's word that it stays; who needs longer has no time for our callers."""
WAIT_SHARE = 8
"""A queue longer than this part of the default timeout is for actors with a shorter one."""


class Serving:
    """Serves from :meth:`subscribe` to :meth:`close`. Everything is called on the event loop."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        *,
        gpu: GpuThread,
        admission: Admission,
        meter: Meter,
        counters: EndpointCounters,
        connection: Connection,
        heartbeat: HeartbeatPublisher,
        proof: str,
        rules: Sequence[Rule] = (),
    ) -> None:
        self._settings = settings
        self._wait_s_max = settings.timeout_ms_default / 1000 / WAIT_SHARE
        self._rules = rules
        self._admission = admission
        self._connection = connection
        self._heartbeat = heartbeat
        # SemIf's own functions take one request: the others' answers should not wait for the last.
        rows_max = settings.batch_rows_max if settings.scorer == "fast" else 1
        lanes = Lanes(tokens_max=settings.batch_tokens_max, rows_max=rows_max)
        self.scheduler = Scheduler(engine, gpu, admission, lanes, canary_s=settings.canary_s)
        self._handler = Handler(
            settings,
            engine,
            self.scheduler,
            admission=admission,
            meter=meter,
            counters=counters,
            proof=proof,
        )
        self._requests = RequestReply(
            settings, connection, self._handler, meter, crowd_changed=self._on_crowd
        )
        self._peers = Peers(settings, connection, on_leave=self._on_peer_leaves)
        self.intake = Intake(
            connection,
            self._requests.callbacks,
            group=settings.queue_group,
            load=self._load,
            peer_free=lambda: self._peers.free,
            peer_stays=lambda: self._peers.heard(PEER_ANSWERS_S),
            changed=heartbeat.changed,
        )
        self.pipeline = Pipeline(
            settings,
            rules,
            connection,
            self._handler,
            room=self._room,
            changed=heartbeat.changed,
        )
        metadata = service_metadata(settings, connection, engine.health(), proof=proof)
        self._discovery = Discovery(settings, connection, counters, heartbeat.beat, metadata)
        self._tasks = [asyncio.create_task(self.scheduler.run(), name="scheduler")]

    async def subscribe(self) -> str:
        """Take requests, and make sure that the server lets us and that our name is our own.

        Says what was found of JetStream; what is not as it must be refuses the start.
        """
        found = await check(self._connection, self._settings, self._rules)
        await self._peers.subscribe()
        await self._heartbeat.subscribe_status()
        await self._discovery.subscribe()
        await self._connection.confirm()
        await prove_unique(self._settings, self._connection)
        await self.intake.step_in()
        await self.pipeline.open()
        await self._connection.confirm()
        self._tasks.append(asyncio.create_task(self.intake.run(), name="intake"))
        self._tasks.append(asyncio.create_task(self.pipeline.run(), name="pipeline"))
        return found

    async def run(self) -> None:
        """Serve until something fails: raises ``CanaryFailed``, ``EngineDied``, or a bug's error.

        May be cancelled; the parts work on, for :meth:`drain` needs them.
        """
        await run_until_one_fails(self._tasks)

    async def drain(self, *, within_s: float, hurry: asyncio.Event) -> int:
        """Answer what was accepted; gives how many requests were abandoned instead.

        Unsubscribes first: callers get an instant no-responders, other actors take over.
        """
        await asyncio.gather(self.intake.close(), self.pipeline.stop())
        for caller in self.pipeline.callers():
            self.scheduler.release(caller)
        await self._discovery.end()
        await first_of(self._idle(), hurry.wait(), within_s=within_s)
        abandoned = await self._requests.abandon() + await self.pipeline.abandon()
        for task in self._tasks:
            if task.done():
                task.result()  # the engine failed meanwhile: raise it
        return abandoned

    async def close(self) -> None:
        """Stop taking requests and answer all that are left; safe after :meth:`drain`."""
        await asyncio.gather(self.intake.close(), self.pipeline.stop())
        await self._discovery.end()
        await end(*self._tasks)
        await first_of(self._idle(), within_s=LAST_REPLIES_S)
        await self._requests.abandon()
        await self.pipeline.abandon()
        await self.pipeline.close()
        await self._heartbeat.end_status()
        await self._peers.end()
        self._handler.close()

    async def _idle(self) -> None:
        await asyncio.gather(self._requests.idle(), self.pipeline.idle())

    def _room(self) -> int:
        """Give how many messages of streams could begin: half of the queue is for requests.

        And no more than end well before their deadline: each that does not costs a delivery.
        """
        admission = self._admission
        if not admission.roomy:
            return 0
        by_count = max(admission.jobs_max // 2, 1) - admission.jobs
        return min(by_count, admission.more_within(self._wait_s_max))

    def _on_peer_leaves(self) -> None:
        """Tell it that we stay, if we do; step in, if we were out."""
        if self.intake.taking:
            self._heartbeat.changed()
        else:
            self.intake.look()

    def _on_crowd(self) -> None:
        self.intake.look()

    def _load(self) -> Load:
        wait_s = max(self._admission.wait_s(), self.scheduler.running_s())
        return Load(
            full=self._admission.full,
            roomy=self._admission.roomy,
            wait_s=wait_s,
            wait_s_max=self._wait_s_max,
        )
