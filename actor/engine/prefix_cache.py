"""What the model computed for a prefix, kept for requests to come: bounded by bytes, exact."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

__all__ = ["PrefixCache"]


class Sized(Protocol):
    """What can be kept."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""


Entry = TypeVar("Entry", bound=Sized)


@dataclass(slots=True)
class _Counts:
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    too_large: int = 0


class PrefixCache(Generic[Entry]):
    """Least recently used goes first. Belongs to one loaded model, so only token ids are the key.

    A key is compared whole, not by its hash: a hit is exact or none. An entry in use stays alive
    by its reference when it is evicted. GPU thread only.
    """

    def __init__(self, *, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.counts = _Counts()
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Entry | None:
        """Give the entry of exactly this key, and count the hit or miss."""
        entry = self._entries.get(key)
        if entry is None:
            self.counts.misses += 1
            return None
        self._entries.move_to_end(key)
        self.counts.hits += 1
        return entry

    def would_hit(self, key: Hashable) -> bool:
        """Say whether the key is there; changes neither order nor counts."""
        return key in self._entries

    def put(self, key: Hashable, entry: Entry) -> None:
        """Keep an entry; one larger than the whole cache is counted and let go."""
        if entry.nbytes > self.bytes_max:
            self.counts.too_large += 1
            return
        replaced = self._entries.pop(key, None)
        self.bytes += entry.nbytes - (replaced.nbytes if replaced is not None else 0)
        self._entries[key] = entry
        while self.bytes > self.bytes_max:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= oldest.nbytes
            self.counts.evictions += 1

    def clear(self) -> bool:
        """Let everything go, for memory; True when there was something."""
        had = bool(self._entries)
        self.counts.evictions += len(self._entries)
        self._entries.clear()
        self.bytes = 0
        return had
