"""SemIf's own functions as the scorer: slow, memory-hungry, and right by definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from actor.engine.base import DecisionResult
from actor.engine.binding import Binding
from schemas.decision import ModelInfo

__all__ = ["ReferenceScorer"]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReferenceScorer:
    """Calls ``direct.score`` and ``shared.score_shared``. GPU thread only."""

    binding: Binding
    model: Any
    tokenizer: Any
    info: ModelInfo
    tokens_max: int

    name = "reference"

    def score(self, row: Row) -> DecisionResult:
        """Score one row by itself."""
        result = self.binding.score(
            self.model, self.tokenizer, row, msgspec.to_builtins(self.info), self.tokens_max
        )
        return msgspec.convert(result, DecisionResult)

    def score_shared(self, rows: Sequence[Row]) -> tuple[list[DecisionResult], int]:
        """Score rows over one state, which is prefilled once.

        Gives the results and the length of the shared prefix in tokens.
        """
        # Looked up in the module at each call: what is installed there is what must be proved.
        results, timing = self.binding.shared.score_shared(
            self.model, self.tokenizer, list(rows), msgspec.to_builtins(self.info), self.tokens_max
        )
        return msgspec.convert(results, list[DecisionResult]), timing["prefix_tokens"]
