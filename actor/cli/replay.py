"""``semif-actor replay``: a stored stretch of a stream through one rule, slowly, to be resumed.

It is a client like any other. Actors score its questions in their background lane, when nothing
else waits, and refuse them while they are half full; nothing on the server is made or changed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections import Counter
from pathlib import Path

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from actor.bus.client import BusClient, NoAnswer, NoReply, NoResponders, open_client
from actor.bus.delivery import Delivery
from actor.bus.objects.api import NoApi, asking_as_client
from actor.bus.rule_event import carry_out
from actor.bus.stored_events import next_stored
from actor.bus.stream_publish import publish_to_stream
from actor.bus.work_by_request import ask_work
from actor.cli.replay_state import BadState, Place, write_place
from actor.cli.replay_stretch import Stretch, begin
from actor.cli.show import complain, console
from actor.engine.base import Work
from actor.rules.outcomes import Outcome, Stopped
from actor.rules.plan import Limits
from actor.rules.publication import Publication
from actor.settings import Settings
from actor.tasks import end
from schemas.decision import ScoreReply, SharedReply
from schemas.errors import ErrorBody

__all__ = ["run_replay"]

IN_FLIGHT_MAX = 16
"""Events asked about at once: enough to fill a batch, few enough to leave room for others."""
NOBODY_S = 60.0
"""Seconds without an actor after which it stops: somebody must look."""
PUBLISH_TIMEOUT_S = 5.0
UNPUBLISHED_MAX = 5
"""Tries of a sink that does not take a decision."""
WAIT_MIN_S, WAIT_MAX_S = 0.05, 10.0


async def run_replay(
    settings: Settings, stretch: Stretch, *, events_per_s: float, state: Path | None
) -> int:
    """Replay, and give the exit code: 0 at the end of the stretch, 1 before it."""
    try:
        async with open_client(settings, "semif-actor replay") as client:
            place = await begin(client, stretch, state)
            if place.next > place.end >= place.start:
                text = f"{state}: sequences {place.start} to {place.end} are done; "
                console.print(Text(text + "another stretch needs another file"), soft_wrap=True)
                return 0
            if state is not None:
                write_place(state, place)  # before anything is published: it may not be possible
            replay = _Replay(
                settings, client, stretch, place, state=state, events_per_s=events_per_s
            )
            return await _until_told(replay)
    except (NoAnswer, NoApi, BadState) as error:
        complain("replay", error)
        return 1
    except OSError as error:
        complain("replay", f"{state}: {error.strerror}")
        return 1


async def _until_told(replay: _Replay) -> int:
    """Run until the end or a signal, and say how to go on."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, replay.stop.set)
    try:
        await replay.run()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        replay.report()
    return 0 if replay.done else 1


class _Replay:
    """Reads in order, works on several events at once, and remembers up to where all are done."""

    def __init__(
        self,
        settings: Settings,
        client: BusClient,
        stretch: Stretch,
        place: Place,
        *,
        state: Path | None,
        events_per_s: float,
    ) -> None:
        self._client = client
        self._ask = asking_as_client(client)
        self._rule = stretch.rule
        self._source = stretch.source
        self._timeout_s = settings.timeout_ms_default / 1000
        self._limits = Limits(
            settings.request_bytes_max, settings.request_depth_max, client.payload_bytes_max
        )
        self._place = place
        self._state = state
        self._gap_s = 1 / events_per_s
        self._working: dict[int, asyncio.Task[None]] = {}
        """By sequence, in the order read."""
        self._read_up_to = place.next
        self._advanced = asyncio.Event()
        self._outcomes: Counter[str] = Counter()
        self._nobody_since_s: float | None = None
        self._failure: Exception | None = None
        self._finished = False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._bar = self._progress.add_task(
            f"replay {self._rule.name}", total=max(place.end - place.start + 1, 0)
        )
        self.stop = asyncio.Event()

    @property
    def done(self) -> bool:
        """True when every event of the stretch has its outcome."""
        return self._place.next > self._place.end

    async def run(self) -> None:
        """Work until the end or until told to stop; raises what is wrong with the bus."""
        with self._progress:
            self._show()
            keeping = asyncio.create_task(self._keep_place())
            working = asyncio.create_task(self._work_on_all())
            stopping = asyncio.create_task(self.stop.wait())
            await asyncio.wait({working, stopping, keeping}, return_when=asyncio.FIRST_COMPLETED)
            self.stop.set()  # a cancellation may be lost on its way through nats-py's request
            await end(working, stopping, *self._working.values())
            self._finished = True
            self._advanced.set()
            await keeping
            self._show()
        if not working.cancelled():
            working.result()
        if self._failure is not None:
            raise self._failure

    def report(self) -> None:
        """Print what became of the events, and how to go on."""
        counts = ", ".join(f"{code} {count}" for code, count in self._outcomes.most_common())
        console.print(Text(f"outcomes: {counts or 'none'}"), soft_wrap=True)
        if self.done:
            return
        how = f"--resume {self._state}" if self._state else f"--from {self._place.next}"
        text = f"stopped before sequence {self._place.next}; go on with the same command and {how}"
        console.print(Text(text), soft_wrap=True)

    async def _work_on_all(self) -> None:
        due_s = time.monotonic()
        while self._read_up_to <= self._place.end and not self.stop.is_set():
            await self._until_at_most(IN_FLIGHT_MAX - 1)
            await asyncio.sleep(due_s - time.monotonic())
            due_s = max(due_s, time.monotonic()) + self._gap_s
            stored = await next_stored(
                self._ask, self._source.stream, self._source.subject, self._read_up_to
            )
            if stored is None or stored.sequence > self._place.end:
                self._read_up_to = self._place.end + 1
                break
            self._read_up_to = stored.sequence + 1
            self._working[stored.sequence] = asyncio.create_task(self._work(stored))
        await self._until_at_most(0)
        self._advance()

    async def _until_at_most(self, count: int) -> None:
        """Wait while more are worked on. One that failed stays listed: the place is before it."""
        while len(busy := [task for task in self._working.values() if not task.done()]) > count:
            await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)

    async def _work(self, stored: Delivery) -> None:
        """Bring one event to its outcome; a failure stops the replay before it."""
        try:
            outcome = await self._outcome_of(stored)
        except Exception as error:  # noqa: BLE001 - raised again by run(); its owner is this object
            self._failure = self._failure or error
            self.stop.set()
            return
        self._outcomes[outcome.code] += 1
        del self._working[stored.sequence]
        self._advance()

    async def _outcome_of(self, stored: Delivery) -> Outcome:
        reason = ""
        for turn in range(UNPUBLISHED_MAX):
            found = await carry_out(self._rule, stored, self._limits, self._decide, self._publish)
            if not isinstance(found, Stopped):
                return found
            if found.outcome.action != "retry":
                where = f"sequence {stored.sequence}: {found.outcome.code}"
                console.print(Text(f"{where}: {found.reason}"), soft_wrap=True)
                return found.outcome
            reason = found.reason
            await self._wait(WAIT_MIN_S * 2**turn)
        raise NoAnswer(reason)

    async def _decide(self, work: Work) -> ScoreReply | SharedReply | ErrorBody:
        """Ask until there is an answer: replay has the time."""
        for turn in itertools.count():
            wait_s = WAIT_MIN_S * 2 ** min(turn, 10)
            try:
                answer = await ask_work(
                    self._client, work, timeout_s=self._timeout_s, background=True
                )
            except (NoResponders, NoReply) as error:  # an actor has died on it, perhaps
                now_s = time.monotonic()
                self._nobody_since_s = self._nobody_since_s or now_s
                if now_s - self._nobody_since_s > NOBODY_S:
                    raise NoAnswer(f"{error}, for {NOBODY_S:g} s") from None
                self._show("no actor answers")
            else:
                self._nobody_since_s = None
                if not (isinstance(answer, ErrorBody) and answer.retryable):
                    return answer
                self._show(answer.code)
                wait_s = max(wait_s, (answer.retry_after_ms or 0) / 1000)
            await self._wait(wait_s)
        raise AssertionError("not reached")

    async def _publish(self, publication: Publication) -> str | None:
        subject, payload = publication.subject, publication.payload
        if publication.stream is None:
            await self._client.publish(subject, payload, publication.headers)
            return None
        return await publish_to_stream(
            self._request, publication.stream, subject, payload, publication.headers
        )

    async def _request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None
    ) -> bytes | None:
        try:
            message = await self._client.request(
                subject, payload, headers, timeout_s=PUBLISH_TIMEOUT_S
            )
        except NoAnswer:
            return None
        return bytes(message.data)

    async def _wait(self, seconds: float) -> None:
        """Spread, so that events refused together do not come back together."""
        await asyncio.sleep(min(seconds, WAIT_MAX_S) * random.uniform(0.5, 1.5))  # noqa: S311

    def _advance(self) -> None:
        up_to = next(iter(self._working), self._read_up_to)
        if up_to > self._place.next:
            self._place = msgspec.structs.replace(self._place, next=up_to)
            self._advanced.set()
        self._show()

    async def _keep_place(self) -> None:
        """Write the place down, once the server has what was published before it."""
        while True:
            await self._advanced.wait()
            self._advanced.clear()
            place, last = self._place, self._finished
            await self._client.barrier()
            if self._state is not None:
                write_place(self._state, place)
            if last:
                return

    def _show(self, waiting_for: str = "") -> None:
        waiting = f" ({waiting_for})" if waiting_for else ""
        self._progress.update(
            self._bar,
            completed=self._place.next - self._place.start,
            description=f"replay {self._rule.name}{waiting}",
        )
