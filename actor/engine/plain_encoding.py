"""INV-9: prompts in which the request's text is text, whatever it says.

SemIf encodes template and text as one string, so ``<|im_end|>`` in an event would end the turn.
Here the template's own parts keep their control tokens, and everything between them is encoded by
a second tokenizer, made of the same file without its added tokens. Where a text names no added
token the ids are SemIf's: proved at the start.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from itertools import product
from typing import Any

from tokenizers import Tokenizer

from actor.engine.base import Prompt, Question
from actor.engine.binding import Binding
from actor.engine.encoding import check_length, refusal, row_of
from actor.engine.prefix import common_length, full_prompt_row, merge_prone_states
from schemas.decision import State

__all__ = ["PlainEncoder"]

STATES_KEPT = 64
"""States whose tokens are kept: the questions about one state come together."""
CUT = ', "criterion":'
"""A blank follows, at which tokenizers part words: what is before it and what is behind it can be
encoded apart. Proved for the tokenizer that is loaded, or not done.
"""
CUT_PROBES = ("Is it so?", '"', " (:", "\u0301\U0001f600")
"""Beginnings of questions that could reach back over the cut."""


class PlainEncoder:
    """Tokenises each prompt once. Safe on a thread of its own: nothing here is shared."""

    def __init__(self, binding: Binding, tokenizer: Any, *, tokens_max: int) -> None:
        self._direct_messages = binding.direct_messages
        self._digest = binding.digest
        self.tokens_max = tokens_max
        self.control_tokens: dict[int, str] = {
            token_id: str(token) for token_id, token in tokenizer.added_tokens_decoder.items()
        }
        whole: Tokenizer = tokenizer.backend_tokenizer
        self._plain = without_added_tokens(whole)
        before, after = _template_around(binding, tokenizer)
        self._before, self._after = before, after
        self._before_ids, self._before_text = self._after_last_control(whole, before)
        self._after_ids, self._after_text = self._until_first_control(whole, after)
        self._kept: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._apart = self._parts_at_the_cut()
        self.head = self._constant_head()
        """Ids that begin every prompt, whatever the state."""

    def encode(self, state: State, question: Question, *, at: str = "") -> Prompt:
        """Give the prompt of one question.

        Raises :class:`Invalid` (SemIf refuses the row) or :class:`TooLarge`. ``at`` is the
        question's path in the request, dot included.
        """
        try:
            prompt = self._encode(row_of(state, question))
        except ValueError:
            raise refusal(at) from None
        check_length(len(prompt.ids), self.tokens_max, at)
        if prompt.ids[: len(self.head)] != self.head:
            raise AssertionError("a prompt does not begin as every prompt does: a bug")
        return prompt

    def _encode(self, row: dict[str, Any]) -> Prompt:
        payload = self._direct_messages(row)[-1]["content"]
        # Behind the state comes the constant `, "criterion": "`. Where exactly the cut lies is of
        # no consequence for any answer: rows share work where their ids are equal, and only there.
        constant = f'{CUT} {json.dumps(row["question"], ensure_ascii=False)}, "options": '
        cut = payload.rindex(constant) + len(CUT)
        before, behind = self._before_text + payload[:cut], payload[cut:] + self._after_text
        if self._apart:
            state_ids = self._ids_of_state(before)
            text_ids: tuple[int, ...] = (*state_ids, *self._ids(behind))
            state_tokens = len(state_ids)
        else:
            encoding = self._plain.encode(before + behind, add_special_tokens=False)
            text_ids = tuple(encoding.ids)
            state_tokens = encoding.char_to_token(len(before)) or 0
        return Prompt(
            (*self._before_ids, *text_ids, *self._after_ids),
            max(len(self._before_ids) + state_tokens, len(self.head)),
            self._digest(f"{self._before}{payload}{self._after}"),
        )

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def _ids_of_state(self, before: str) -> tuple[int, ...]:
        """Give the ids of everything up to the cut, from the last states if it is there."""
        ids = self._kept.get(before)
        if ids is None:
            ids = tuple(self._ids(before))
            if len(ids) <= self.tokens_max:  # a longer one is refused, and may be of any length
                self._kept[before] = ids
                if len(self._kept) > STATES_KEPT:
                    self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(before)
        return ids

    def _parts_at_the_cut(self) -> bool:
        """Tell whether this tokenizer gives the same ids for two parts as for the whole.

        Tried with every merge-prone state before the cut and odd questions behind it.
        """
        for state, asked in product(merge_prone_states(), CUT_PROBES):
            before = json.dumps({"evidence": state}, ensure_ascii=False)[:-1] + CUT
            behind = f" {json.dumps(asked, ensure_ascii=False)}, "
            if self._ids(before) + self._ids(behind) != self._ids(before + behind):
                return False
        return True

    def _constant_head(self) -> tuple[int, ...]:
        """Give what the prompts over states of every kind have in common."""
        self.head = ()
        states: list[State] = [{"a": 1}, [1], [[1]], [{"a": 1}], [None], "0", " ", "\n", "\\"]
        prompts = [
            self._encode(full_prompt_row(state)).ids for state in (*states, *merge_prone_states())
        ]
        first = list(prompts[0])
        # One less: a state may begin with a mark that merges further back than any seen here.
        shared = min(common_length(first, list(other)) for other in prompts[1:]) - 1
        return tuple(first[: max(shared, 0)])

    def _after_last_control(self, whole: Tokenizer, text: str) -> tuple[tuple[int, ...], str]:
        """Cut behind the last control token: the ids up to it, and the text that is left."""
        encoding = whole.encode(text, add_special_tokens=False)
        for index in range(len(encoding.ids) - 1, -1, -1):
            if encoding.ids[index] in self.control_tokens:
                return tuple(encoding.ids[: index + 1]), text[encoding.offsets[index][1] :]
        return (), text

    def _until_first_control(self, whole: Tokenizer, text: str) -> tuple[tuple[int, ...], str]:
        """Cut before the first control token: the ids from it on, and the text before it."""
        encoding = whole.encode(text, add_special_tokens=False)
        for index, token in enumerate(encoding.ids):
            if token in self.control_tokens:
                return tuple(encoding.ids[index:]), text[: encoding.offsets[index][0]]
        return (), text


def without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Give a tokenizer of the same file that knows no added token, not even by its vocabulary."""
    data = json.loads(tokenizer.to_str())
    added = {token["content"] for token in data["added_tokens"]}
    data["added_tokens"] = []
    data["post_processor"] = None
    vocabulary = data["model"].get("vocab")
    if isinstance(vocabulary, dict):
        # A model with ``ignore_merges`` would find the whole word there.
        data["model"]["vocab"] = {
            text: token for text, token in vocabulary.items() if text not in added
        }
    data["truncation"] = data["padding"] = None
    return Tokenizer.from_str(json.dumps(data))


def _template_around(binding: Binding, tokenizer: Any) -> tuple[str, str]:
    """Give what the chat template puts before and behind the payload; constant, as was proved."""
    messages = binding.direct_messages(full_prompt_row("probe"))
    prompt: str = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    before, after = prompt.split(messages[-1]["content"])
    return before, after
