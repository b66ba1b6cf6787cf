"""Callbacks that nats-py may call: an exception out of one would end its read loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog

__all__ = ["guarded_callback"]

_log = structlog.get_logger()


def guarded_callback(
    callback: Callable[..., Awaitable[None] | None],
) -> Callable[..., Awaitable[None]]:
    """Wrap a callback of nats-py so that nothing but a cancellation leaves it.

    The loop would end while ``is_connected`` stays true (nats.py issue 204).
    """

    async def guarded(*arguments: Any) -> None:
        try:
            result = callback(*arguments)
            if result is not None:
                await result
        except Exception:  # noqa: BLE001 - see above
            _log.exception("a bus callback failed: a bug")

    return guarded
