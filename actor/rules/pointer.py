"""JSON Pointer (RFC 6901): which part of an event is meant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

__all__ = ["MISSING", "Missing", "Pointer", "PointerError", "lookup", "parse_pointer"]


class Missing(Enum):
    """The type of :data:`MISSING`: null is a value, so None cannot say that there is none."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""What a pointer gives that finds nothing."""

_BAD_ESCAPE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,9})\Z")
"""Ten digits are more than any event has elements, and int() stays cheap."""


class PointerError(ValueError):
    """The text is no JSON Pointer; the message says why."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A checked pointer."""

    text: str
    keys: tuple[str, ...]


def parse_pointer(text: str) -> Pointer:
    """Check ``text``; raises :class:`PointerError`."""
    if text and not text.startswith("/"):
        raise PointerError('a JSON Pointer begins with "/"')
    if _BAD_ESCAPE.search(text):
        raise PointerError('in a JSON Pointer "~" is written "~0", and "/" in a name "~1"')
    # ~1 first: the other way round, ~01 would become "/" instead of "~1" (RFC 6901, section 4).
    keys = (key.replace("~1", "/").replace("~0", "~") for key in text.split("/")[1:])
    return Pointer(text, tuple(keys))


def lookup(pointer: Pointer, value: Any) -> Any:
    """Give the part of ``value`` that ``pointer`` names, or :data:`MISSING`."""
    for key in pointer.keys:
        if isinstance(value, dict):
            value = value.get(key, MISSING)
        elif isinstance(value, list) and _INDEX.match(key) and int(key) < len(value):
            value = value[int(key)]
        else:
            return MISSING
    return value
