"""Small things about asyncio tasks that several owners need."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

__all__ = ["end", "first_of", "run_until_one_fails"]


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their end; their results are of no interest any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(*work: Coroutine[Any, Any, object], within_s: float) -> None:
    """Wait for whichever is first, or for the time to pass, and end the others."""
    tasks = [asyncio.create_task(each) for each in work]
    await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    await end(*tasks)


async def run_until_one_fails(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait while all are well, and raise the first one's error; returns when all have ended."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
