"""Rows over one state hold one copy of it: memory does not grow with rows times prefix."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from semif_phase1 import direct, shared
from torch.utils._python_dispatch import TorchDispatchMode

from actor.engine.base import Question
from actor.engine.binding import Binding
from actor.engine.encoding import row_of
from actor.engine.fast_scorer import FastScorer
from actor.engine.loading import load
from actor.engine.manifest import read_and_verify
from actor.engine.memory import Device
from actor.engine.plain_encoding import PlainEncoder
from schemas.decision import Option

TOKENS_MAX = 4096
LONG = " ".join(("late", "order", "again", "paid")[number % 4] for number in range(2000))


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Knows the most bytes that tensors made inside the block held at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor):
                self._count(each.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        size: int = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._let_go, key, size)

    def _let_go(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


def peak_of(call: Callable[[], object]) -> int:
    """Give the most bytes of tensors that ``call`` held beyond what was there before."""
    ruler = LiveBytes()
    with ruler:
        call()
    return ruler.peak


@pytest.fixture(scope="module")
def loaded(tiny_llama: Path) -> Any:
    """Give the model in float32."""
    manifest, _ = read_and_verify(tiny_llama, revision=None)
    cpu = Device("cpu", "cpu", None, 0)
    return load(torch, tiny_llama, manifest, cpu, dtype="float32", tokens_max=TOKENS_MAX)


def questions(count: int) -> list[Question]:
    """Give questions of one length."""
    options = tuple(Option(id=f"{n}", description=f"option {n} of it") for n in range(2))
    return [Question(f"q{n}", f"Is number {n:03} so?", options) for n in range(count)]


def test_many_rows_over_a_long_state_need_little_more_than_few(loaded: Any, bound: Binding) -> None:
    """64 rows over 2,000 words: 1.3 times 8 rows at most, beyond what the rows take themselves.

    What they take themselves is what they need over a state of one word. SemIf's own function, by
    the same ruler, copies the state for each row: there 32 rows take over three times as much as 8.
    """
    encoder = PlainEncoder(bound, loaded.tokenizer, tokens_max=TOKENS_MAX)
    letters = direct._slot_ids(loaded.tokenizer, 16)

    def ours(state: str, count: int) -> int:
        scorer = FastScorer(
            loaded.model,
            head=encoder.head,
            letters=letters,
            batch_tokens_max=8192,
            batch_rows_max=64,
            cache_bytes_max=2**28,
        )
        prompts = [encoder.encode(state, each) for each in questions(count)]
        return peak_of(lambda: scorer.score(prompts))

    def semif(state: str, count: int) -> int:
        rows = [row_of(state, each) for each in questions(count)]
        return peak_of(
            lambda: shared.score_shared(loaded.model, loaded.tokenizer, rows, {}, TOKENS_MAX)
        )

    def growth(of: Callable[[str, int], int], few: int, many: int) -> float:
        return (of(LONG, many) - of("word", many)) / (of(LONG, few) - of("word", few))

    assert growth(ours, 8, 64) <= 1.3
    assert growth(semif, 8, 32) > 3
