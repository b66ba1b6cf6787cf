"""A whole actor in the test's own process, around an engine that needs no weights: milliseconds."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.cli.bench.responders import InstantEngine
from actor.engine.base import Engine, Outcome, Prepared, Scores
from actor.service import Exit, serve
from actor.settings import Settings
from schemas.codec import codec_for
from schemas.errors import SemifError
from schemas.health import Heartbeat

TIMEOUT_S = 30.0


class QuickEngine(InstantEngine):
    """Answers at once, and passes on the errors of decisions refused before, as engines do."""

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """Answer each request, with an error where a question is one."""
        return [self._each(prepared, rows=len(batch)) for prepared in batch]

    def _each(self, prepared: Prepared, *, rows: int) -> Scores:
        results = tuple(
            each if isinstance(each, SemifError) else self._result(each)
            for each in prepared.questions
        )
        return Scores(results, forward_ms=0.0, batch_rows=rows, prefix_tokens_reused=0)


@asynccontextmanager
async def actor_in_process(
    settings: Settings, watcher: Client, engine: Engine | None = None
) -> AsyncIterator[list[Heartbeat]]:
    """Run an actor until the block ends; gives its heartbeats, which go on coming.

    ``watcher`` may read the health subject. The end is a SIGTERM and a clean exit, drain and all.
    """
    beats: list[Heartbeat] = []
    changed = asyncio.Event()

    async def on_heartbeat(message: Msg) -> None:
        beats.append(codec_for(None).decode(message.data, Heartbeat))
        changed.set()

    watching = await watcher.subscribe(
        f"{settings.subject_prefix}.health.{settings.instance}", cb=on_heartbeat
    )
    await watcher.flush()
    await watcher.flush()  # the first one overtakes the SUB
    chosen = engine or QuickEngine()
    running = asyncio.create_task(serve(settings, lambda _settings, _ledger: chosen))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not any(beat.state == "ready" for beat in beats):
                changed.clear()
                news = asyncio.create_task(changed.wait())
                await asyncio.wait({news, running}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                assert not running.done(), (running.result(), [beat.reason for beat in beats])
        yield beats
        if not running.done():  # without its handler the signal would end the test's process
            signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(TIMEOUT_S):
            assert await running == Exit.CLEAN
            while beats[-1].state != "stopped":
                changed.clear()
                await changed.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await watching.unsubscribe()
