"""How long to wait before the next attempt to connect."""

from __future__ import annotations

import random

__all__ = ["delay_s"]

RECONNECT_DELAY_MAX_S = 5.0
RECONNECTS_A_LOSS = 6
"""Reconnects that fit into ``bus_lost_s``, however short it is."""


def delay_s(bus_lost_s: float) -> float:
    """Give a delay, never 0; spread, so that not all come back to a restarted server at once."""
    most_s = min(RECONNECT_DELAY_MAX_S, bus_lost_s / RECONNECTS_A_LOSS)
    return random.uniform(most_s / 10, most_s)  # noqa: S311 - no secret
