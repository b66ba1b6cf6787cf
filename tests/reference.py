"""SemIf called in this process, without an actor: where the expected values come from."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from actors import decision

TOKENS_MAX = 1024

PLAIN = (
    "refund",
    "late",
    "broken",
    "login",
    "urgent",
    "never",
    "again",
    "order",
    "price",
    "server",
)
ODD = (
    *("\u00fcber", "caf\u00e9", "\u4f60\u597d", "\U0001f600", "50%", "#42", "a/b", "--flag", "x=1"),
    *("it's", "(really)", '"quoted"', "<b>", "{curly}", "C:\\dir"),
)


def mixed_decisions(count: int) -> list[dict[str, Any]]:
    """Give decisions over every kind of state, 2 to 4 options, every fourth up to 16."""
    dice = random.Random(7)  # noqa: S311 - the same mix each run

    def words(low: int, high: int) -> str:
        some = dice.choices(PLAIN, k=dice.randint(low, high))
        return " ".join([*some[1:], dice.choice(ODD) if dice.random() < 0.3 else some[0]])

    def state(kind: int) -> Any:
        match kind % 6:
            case 0:
                return words(1, 12)
            case 1:
                return {"subject": words(1, 6), "body": words(3, 10), "n": dice.random()}
            case 2:
                return [words(1, 4) for _ in range(dice.randint(1, 4))]
            case 3:
                return {"user": {"name": words(1, 2), "tags": [words(1, 2), None, True, 3]}}
            case 4:
                return f"{words(1, 5)}\n\n  {words(1, 5)}\t{words(1, 5)}  "
            case _:
                return {"events": [{"at": i, "text": words(1, 5)} for i in range(2)], "e": {}}

    return [
        {
            "id": f"d{index}",
            "state": state(index),
            "question": words(2, 5) + "?",
            "options": [
                {"id": f"o{n}", "description": f"{n} {words(1, 4)}"}
                for n in range(2 + (index % 15 if index % 4 == 0 else index % 3))
            ],
        }
        for index in range(count)
    ]


class SemIf:
    """SemIf on a model directory, loaded here by transformers alone."""

    def __init__(self, folder: Path) -> None:
        import torch
        import transformers

        where: dict[str, Any] = {"local_files_only": True}
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **where)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, **where
        ).eval()

    def score(self, row: dict[str, Any]) -> dict[str, Any]:
        from semif_phase1 import direct

        result: dict[str, Any] = direct.score(self.model, self.tokenizer, row, {}, TOKENS_MAX)
        return result

    def score_shared(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        from semif_phase1 import shared

        results: list[dict[str, Any]]
        results, _ = shared.score_shared(self.model, self.tokenizer, rows, {}, TOKENS_MAX)
        return results


def with_safe_prefix(semif: SemIf, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give SemIf's shared results; where its own prefix fails, with the prefix cut by hand.

    Independent of the wrapper: the longest prefix common to SemIf's and to all full prompts.
    """
    from semif_phase1 import direct, shared

    own = shared._state_prefix
    prefix = getattr(own, "__wrapped__", own)(semif.tokenizer, rows[0]["state"])
    for row in rows:
        ids = direct.encode_prompt(semif.tokenizer, row, TOKENS_MAX)[0]
        while ids[: len(prefix)] != prefix:
            prefix = prefix[:-1]
    shared._state_prefix = lambda _tokenizer, _state: prefix
    try:
        return semif.score_shared(rows)
    finally:
        shared._state_prefix = own


def refused_by_semif_alone(tokenizer: Any, states: list[Any]) -> list[Any]:
    """Give the states whose prefix, by SemIf's own function, does not match a full prompt."""
    from semif_phase1 import direct, shared

    own = shared._state_prefix
    upstream = getattr(own, "__wrapped__", own)
    refused = []
    for state in states:
        row = decision(state) | {"id": "probe"}
        ids = direct.encode_prompt(tokenizer, row, 10**6)[0]
        prefix = upstream(tokenizer, state)
        if ids[: len(prefix)] != prefix:
            refused.append(state)
    return refused
