"""Checking and tokenising prompts before the queue, for the reference scorer."""

from __future__ import annotations

import copy
import json
from typing import Any

from actor.engine.base import Prompt, Question
from actor.engine.binding import Binding
from actor.engine.prefix import full_prompt_row
from schemas.decision import State
from schemas.errors import ControlText, Invalid, TooLarge

__all__ = ["PromptEncoder", "check_length", "refusal", "row_of"]


def row_of(state: State, question: Question) -> dict[str, Any]:
    """Give the row that SemIf's functions take."""
    return {
        "id": question.id,
        "state": state,
        "question": question.question,
        "options": [{"id": o.id, "description": o.description} for o in question.options],
    }


def refusal(at: str) -> Invalid:
    """Give the error of a row that SemIf refuses; ``at`` is its path, dot included."""
    return Invalid("SemIf does not take this decision.", field=at.rstrip(".") or None)


def check_length(tokens: int, tokens_max: int, at: str) -> None:
    """Raise :class:`TooLarge` for a prompt over the limit; ``at`` as in :func:`refusal`."""
    if tokens > tokens_max:
        raise TooLarge(
            "The prompt is too long and is never truncated",
            size=tokens,
            limit=tokens_max,
            unit="tokens",
            field=at.rstrip(".") or None,
        )


class PromptEncoder:
    """Measures prompts and refuses those that may not be scored.

    Has a tokenizer of its own: the GPU thread uses the other one at the same time, and a fast
    tokenizer that two threads configure raises "Already borrowed".
    """

    def __init__(self, binding: Binding, tokenizer: Any, *, tokens_max: int) -> None:
        self._direct_messages = binding.direct_messages
        self._digest = binding.digest
        self._tokenizer = copy.deepcopy(tokenizer)
        self.tokens_max = tokens_max
        self.control_tokens: dict[int, str] = {
            token_id: str(token) for token_id, token in tokenizer.added_tokens_decoder.items()
        }
        self._template_control_tokens = self._count_control(
            self._encode(self._render(full_prompt_row("x")))
        )

    def encode(self, state: State, question: Question, *, at: str = "") -> Prompt:
        """Give the prompt. SemIf encodes it once more, so it is for limits and for the batcher.

        Raises :class:`Invalid` (SemIf refuses the row), :class:`ControlText` (INV-9: SemIf's
        scorers encode the prompt as one text, so a control token in it would be obeyed) or
        :class:`TooLarge`. ``at`` is the question's path in the request, dot included.
        """
        row = row_of(state, question)
        try:
            text = self._render(row)
        except ValueError:
            raise refusal(at) from None
        ids = self._encode(text)
        if self._count_control(ids) != self._template_control_tokens:
            raise ControlText(field=self._find_control(row, at))
        check_length(len(ids), self.tokens_max, at)
        return Prompt(tuple(ids), 0, self._digest(text))

    def _render(self, row: dict[str, Any]) -> str:
        text: str = self._tokenizer.apply_chat_template(
            self._direct_messages(row),
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _count_control(self, ids: list[int]) -> int:
        return sum(token_id in self.control_tokens for token_id in ids)

    def _find_control(self, row: dict[str, Any], at: str) -> str | None:
        """Name the first field whose text alone holds a control token."""
        texts = {"state": row["state"], f"{at}question": row["question"]}
        for index, option in enumerate(row["options"]):
            texts[f"{at}options[{index}].description"] = option["description"]
        for field, text in texts.items():
            ids = self._tokenizer.encode(
                json.dumps(text, ensure_ascii=False), add_special_tokens=False
            )
            if self._count_control(ids):
                return field
        return None
