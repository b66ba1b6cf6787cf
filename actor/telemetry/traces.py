"""Tracebacks for the log: types and places, never a text.

The text of an exception may quote what it stumbled over, and that may be a request; a usual
traceback also tells the folders of this machine. The type and the line are enough to find a bug.
"""

from __future__ import annotations

import traceback

__all__ = ["trace_of"]

CAUSES_MAX = 8
"""Exceptions shown of a chain."""
PLACES_MAX = 40
"""Places shown of an exception, the innermost; an endless recursion has a thousand."""


def trace_of(error: BaseException) -> str:
    """Give the type of ``error``, where it came through, innermost last, and what caused it."""
    lines: list[str] = []
    seen: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if seen is None:
            break
        lines.append(f"{'after ' if lines else ''}{type(seen).__name__}")
        places = [
            f"  {frame.f_globals.get('__name__', '?')}:{line} {frame.f_code.co_name}"
            for frame, line in traceback.walk_tb(seen.__traceback__)
        ]
        lines.extend(places[-PLACES_MAX:])
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return "\n".join(lines)
