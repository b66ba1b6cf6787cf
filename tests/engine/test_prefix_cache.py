"""The prefix cache: bounded by bytes, exact, least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from actor.engine.prefix_cache import PrefixCache


@dataclass(frozen=True, slots=True)
class Entry:
    """Something of a size."""

    nbytes: int


class SameHash(bytes):
    """A key whose hash is every other's."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return bytes.__eq__(self, other) is True


STEPS = st.lists(st.tuples(st.sampled_from("gp"), st.integers(0, 5), st.integers(1, 12)))


@given(STEPS, st.integers(0, 30))
def test_any_sequence_is_a_bounded_lru(steps: list[tuple[str, int, int]], bytes_max: int) -> None:
    """Compared with an ordered dictionary and plain sums."""
    cache: PrefixCache[Entry] = PrefixCache(bytes_max=bytes_max)
    model: OrderedDict[int, Entry] = OrderedDict()
    hits = misses = 0
    for step, key, size in steps:
        if step == "g":
            assert cache.get(key) is model.get(key)
            hits, misses = hits + (key in model), misses + (key not in model)
            if key in model:
                model.move_to_end(key)
        elif size <= bytes_max:
            entry = Entry(size)
            cache.put(key, entry)
            model.pop(key, None)
            model[key] = entry
            while sum(each.nbytes for each in model.values()) > bytes_max:
                model.popitem(last=False)
        else:
            cache.put(key, Entry(size))
        assert cache.bytes == sum(each.nbytes for each in model.values()) <= bytes_max
        assert len(cache) == len(model)
    assert (cache.counts.hits, cache.counts.misses) == (hits, misses)


def test_equal_hashes_are_not_equal_keys() -> None:
    """A collision is a miss, never another state's numbers."""
    cache: PrefixCache[Entry] = PrefixCache(bytes_max=100)
    cache.put(SameHash(b"one"), Entry(1))

    assert cache.get(SameHash(b"two")) is None
    assert cache.get(SameHash(b"one")) == Entry(1)


def test_an_entry_in_use_outlives_its_eviction() -> None:
    """Whoever holds it goes on with it; the cache no longer counts it."""
    cache: PrefixCache[Entry] = PrefixCache(bytes_max=10)
    cache.put(1, Entry(8))
    held = cache.get(1)
    cache.put(2, Entry(8))

    assert held == Entry(8)
    assert cache.get(1) is None
    assert (cache.bytes, cache.counts.evictions) == (8, 1)


def test_what_is_larger_than_the_cache_is_counted() -> None:
    """Refused by name, and nothing that fits has to go for it."""
    cache: PrefixCache[Entry] = PrefixCache(bytes_max=10)
    cache.put(1, Entry(10))
    cache.put(2, Entry(11))

    assert cache.get(1) == Entry(10)
    assert cache.counts.too_large == 1


def test_clearing_says_whether_there_was_anything() -> None:
    """What decides whether another try after an out-of-memory error is of use."""
    cache: PrefixCache[Entry] = PrefixCache(bytes_max=10)
    cache.put(1, Entry(5))

    assert [cache.clear(), cache.clear()] == [True, False]
    assert (cache.bytes, len(cache)) == (0, 0)
