"""The decisions that are asked: plain words, always the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = [
    "QUESTIONS",
    "Row",
    "score_body",
    "shared_body",
    "short_rows",
    "state_of",
    "state_rows",
]

Row = dict[str, Any]
"""A decision as SemIf's functions take it."""

WORDS = (
    *("order", "parcel", "invoice", "refund", "server", "login", "price", "city", "river"),
    *("market", "report", "letter", "engine", "window", "garden", "bottle", "camera"),
    *("doctor", "winter", "summer", "morning", "evening", "street", "bridge", "school"),
    *("office", "train", "ticket", "driver", "kitchen", "paper", "water", "music", "story"),
    *("number", "table", "water", "people", "system", "company", "member", "service"),
    *("product", "project", "account", "customer", "manager", "message", "problem"),
    *("answer", "question", "reason", "change", "delay", "error", "failure", "success"),
    *("payment", "delivery", "contract", "meeting", "the", "and", "with", "from", "after"),
    *("before", "never", "again", "late", "broken", "new", "old", "small", "large", "open"),
    *("closed", "red", "green", "first", "last", "many", "few"),
)
SUBJECTS = (
    "a delivery",
    "a payment",
    "a person",
    "a place",
    "a failure",
    "a machine",
    "a question",
    "a promise",
    "a delay",
    "a meeting",
    "a price",
    "a contract",
    "an animal",
    "the weather",
    "a journey",
    "a building",
    "the past",
    "the future",
    "a success",
    "a document",
    "a complaint",
)
TWO = ("Yes, it is", "No, it is not")
THREE = (*TWO, "The text does not say")
QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = tuple(
    (f"Is the text about {subject}?", THREE if index % 3 == 0 else TWO)
    for index, subject in enumerate(SUBJECTS)
)
"""21 questions with two or three options."""


def state_of(words: int, seed: int) -> str:
    """Give a state of so many words. No mark at its end: SemIf alone refuses some of those."""
    dice = random.Random(seed)  # noqa: S311 - the same text each run
    return " ".join(dice.choices(WORDS, k=words))


def state_rows(
    state: str, questions: Sequence[tuple[str, tuple[str, ...]]] = QUESTIONS
) -> list[Row]:
    """Give every question over one state."""
    return [
        {"id": f"q{index}", "state": state, "question": question, "options": _options(options)}
        for index, (question, options) in enumerate(questions)
    ]


def short_rows(count: int, seed: int, *, words: int = 12) -> list[Row]:
    """Give decisions over different short states: one question, two options."""
    question = ("Does the writer expect an answer today?", TWO)
    return [
        state_rows(f"{number} {state_of(words - 1, seed + number)}", [question])[0]
        for number in range(count)
    ]


def score_body(row: Row) -> bytes:
    """Give the body of a ``score`` request."""
    return msgspec.json.encode(row)


def shared_body(rows: Sequence[Row]) -> bytes:
    """Give the body of a ``score_shared`` request for rows over one state."""
    decisions = [{k: v for k, v in row.items() if k != "state"} for row in rows]
    return msgspec.json.encode({"state": rows[0]["state"], "decisions": decisions})


def _options(descriptions: Sequence[str]) -> list[dict[str, str]]:
    return [{"id": f"o{n}", "description": text} for n, text in enumerate(descriptions)]
