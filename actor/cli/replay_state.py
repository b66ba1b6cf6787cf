"""Where a replay is: a small file that is whole at every moment."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["BadState", "Place", "read_place", "write_place"]


class BadState(Exception):
    """The file is not of this replay; the text says why."""


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a replay has come. Numbers are sequences of the stream."""

    rule: str
    stream: str
    start: int
    next: int
    """Every event before this one has its outcome."""
    end: int
    """The last of the stretch."""


def read_place(file: Path) -> Place | None:
    """Give the place that ``file`` keeps; None when there is no file yet."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Place)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        raise BadState(f"{file} is no state of a replay") from None


def write_place(file: Path, place: Place) -> None:
    """Keep ``place``: whoever reads, or is killed half-way, finds the old one or the new one."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.new")  # another replay may have the same
    beside.write_bytes(msgspec.json.encode(place))
    beside.replace(file)
