"""INV-7: the prefilled state prefix never covers a token that the full prompts do not share.

SemIf encodes the prompt up to the end of the state and drops one token. JSON punctuation after the
state can merge further back than that: in SmolLM2 ``?`` and the following ``",`` become one token,
and ``score_shared`` then refuses an ordinary request (SemIf issue 31).

The wrapper keeps only the leading tokens that upstream's prefix shares with a real full prompt
over the same state. One probe row stands for all rows: what follows the state is the constant
``, "criterion": "``, so every full prompt has the same tokens up to there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from string import punctuation
from types import ModuleType
from typing import Any

from schemas.decision import State

__all__ = [
    "common_length",
    "full_prompt_row",
    "install",
    "is_installed",
    "merge_prone_states",
    "upstream_of",
]

StatePrefix = Callable[[Any, State], list[int]]

PROBE_TOKENS_MAX = 2**31
"""The probe is never scored, so SemIf's limit on it is moved out of the way."""


def full_prompt_row(state: State) -> dict[str, Any]:
    """Give a SemIf row over ``state`` whose prompt stands for all prompts over it."""
    options = [{"id": "yes", "description": "Yes"}, {"id": "no", "description": "No"}]
    return {"id": "probe", "state": state, "question": "Is it so?", "options": options}


def common_length(left: list[int], right: list[int]) -> int:
    """Give the length of the longest common prefix."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def install(shared: ModuleType) -> StatePrefix:
    """Wrap ``_state_prefix`` in ``semif_phase1.shared`` and give the wrapper.

    Idempotent: however often an engine loads, there is one wrapper, and it remembers what it
    wraps (``__wrapped__``).
    """
    present: StatePrefix = shared._state_prefix  # noqa: SLF001 - the one hook SemIf offers
    if is_installed(present):
        return present

    @functools.wraps(present)
    def boundary_safe_prefix(tokenizer: Any, state: State) -> list[int]:
        upstream = present(tokenizer, state)
        full, _, _ = shared.encode_prompt(tokenizer, full_prompt_row(state), PROBE_TOKENS_MAX)
        return upstream[: common_length(upstream, full)]

    boundary_safe_prefix.__semif_actor_wrapper__ = True  # type: ignore[attr-defined]
    shared._state_prefix = boundary_safe_prefix  # type: ignore[attr-defined]  # noqa: SLF001
    return boundary_safe_prefix


def is_installed(function: StatePrefix) -> bool:
    """True for the wrapper that :func:`install` makes."""
    return getattr(function, "__semif_actor_wrapper__", False)


def upstream_of(wrapper: StatePrefix) -> StatePrefix:
    """Give SemIf's own function behind the wrapper."""
    original: StatePrefix = wrapper.__wrapped__  # type: ignore[attr-defined]
    return original


_CLOSERS = '")}'
_BEYOND_ASCII = (
    *("\u201d", "\u2019", "\u00bb", "\u2026", "\u2014"),  # closing quotes, ellipsis, dash
    *("\u3002", "\uff01", "\uff1f", "\u300d", "\u300f", "\u3011", "\uff09", "\u3001"),  # CJK
    *("\U0001f600", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "\U0001f468\u200d\U0001f469"),  # emoji
    *("\u200b", "\u200d", "\ufeff", "\u00a0", "\u00ad"),  # zero width, no-break, soft hyphen
    *("\x00", "\x1b", "\x7f", "\t", "\n", "\r\n"),  # control characters, escaped by JSON
)


def _endings() -> Iterator[str]:
    yield from punctuation
    yield from (mark + closer for mark in punctuation for closer in _CLOSERS)
    yield from (mark * count for mark in punctuation for count in (2, 3))
    yield from (":" + nose + mouth for nose in "-'" for mouth in ")(]|")
    yield from ('")"', "?)!", '."}', "]})", '"}]', "'')", "...", "?!?", '\\"}', "*/)")
    yield from _BEYOND_ASCII


def merge_prone_states() -> Iterator[State]:
    """Give states whose end may merge with the JSON that follows, bare and nested.

    A fixed example is not enough: which states SemIf refuses depends on the tokenizer's merges.
    """
    for index, ending in enumerate(_endings()):
        text = f"ok {ending}"
        yield text
        match index % 4:
            case 0:
                yield {"person_said": text}
            case 1:
                yield [text]
            case 2:
                yield {"user": {"name": "Ann", "words": [text]}}
            case _:
                yield {"said": [{"text": text}], "n": [1, {"last": text}]}
