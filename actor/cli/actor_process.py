"""An actor in a process of its own: started, waited for, and gone at the end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["ACTOR", "NotReady", "actor_process", "end_process", "until_ready"]

ACTOR = ("-m", "actor", "run")
LOG_TAIL_CHARS = 2000

Ready = TypeVar("Ready")


class NotReady(Exception):
    """The actor did not become ready; the text says why."""


@asynccontextmanager
async def actor_process(
    environment: Mapping[str, str], log: Path, command: Sequence[str] = ACTOR
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``command`` of this interpreter, its output in ``log``; killed at the end."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *command), env=environment, stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        await end_process(process)


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill a process that still runs, and wait for it."""
    if process.returncode is None:
        process.kill()
        await process.wait()


async def until_ready(
    watch: Coroutine[Any, Any, Ready],
    process: asyncio.subprocess.Process,
    log: Path,
    *,
    within_s: float,
) -> Ready:
    """Give what ``watch`` gives; raises :class:`NotReady` when the process ends or time is up."""
    exited = asyncio.create_task(process.wait())
    watching = asyncio.create_task(watch)
    try:
        await asyncio.wait(
            {exited, watching}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED
        )
        if watching.done():
            return watching.result()
    finally:
        exited.cancel()
        watching.cancel()
        await asyncio.gather(exited, watching, return_exceptions=True)
    tail = log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARS:]
    raise NotReady(f"the actor did not become ready (exit {process.returncode}):\n{tail}")
