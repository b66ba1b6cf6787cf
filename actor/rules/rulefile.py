"""Reading ``rules.toml``: every mistake is told, with file, rule and field."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from actor.rules.loops import find_loops, find_rivals
from actor.rules.reading import Mistake, RuleReader
from actor.rules.rule import Rule

__all__ = ["HOPS_MAX_DEFAULT", "RulesError", "load", "parse"]

HOPS_MAX_DEFAULT = 3
"""A chain of rules is rarely longer, and a loop costs the model's time at every turn."""


class RulesError(Exception):
    """The file cannot be used; the text says where and why, one mistake a line."""

    def __init__(self, file: str, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(f"{file}: {mistake}" for mistake in mistakes))
        self.mistakes = tuple(mistakes)


class RuleFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file; the rules are read one by one, so that each can have its mistakes."""

    rules: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=256)]
    """The rules, in any order."""
    hops_max: Annotated[int, Meta(ge=1, le=64)] = HOPS_MAX_DEFAULT
    """Rules that one event may go through."""


def load(path: Path, *, prefix: str) -> tuple[Rule, ...]:
    """Read the rules of ``path``; raises :class:`RulesError`.

    ``prefix`` is that of the actor's own subjects, which rules can neither read nor publish to.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RulesError(str(path), [Mistake(None, None, f"cannot be read: {error}")]) from None
    return parse(text, str(path), prefix=prefix)


def parse(text: str, file: str, *, prefix: str) -> tuple[Rule, ...]:
    """Read the rules of a file's text; raises :class:`RulesError`."""
    try:
        contents = msgspec.convert(tomllib.loads(text), RuleFile)
    except (ValueError, RecursionError) as error:
        # tomllib's, int()'s for thousands of digits, and msgspec's, which says where.
        raise RulesError(file, [Mistake(None, None, str(error))]) from None
    mistakes: list[Mistake] = []
    rules: list[Rule] = []
    names: set[str] = set()
    for place, table in enumerate(contents.rules):
        reader = RuleReader(table, place, prefix, contents.hops_max)
        if reader.name in names:
            reader.mistake("name", "another rule has this name")
        names.add(reader.name)
        rule = reader.read()
        mistakes.extend(reader.mistakes)
        if rule is not None:
            rules.append(rule)
    mistakes.extend(_between(rules))
    if mistakes:
        raise RulesError(file, mistakes)
    return tuple(rules)


def _between(rules: Sequence[Rule]) -> list[Mistake]:
    """Find what is wrong with rules that are right by themselves."""
    loops = [
        Mistake(loop[0], "sinks", f"what it publishes comes back to it: {' -> '.join(loop)}")
        for loop in find_loops(rules)
    ]
    rivals = [
        Mistake(second, "source", f'shares {shared} with rule "{first}": each would miss events')
        for first, second, shared in find_rivals(rules)
    ]
    return loops + rivals
