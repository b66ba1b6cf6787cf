"""NATS subjects: what one may look like, and whether two can be the same."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Literal

__all__ = [
    "ANY",
    "MANY",
    "SUBJECT_BYTES_MAX",
    "TokenPattern",
    "fault_of_filter",
    "fault_of_subject",
    "is_token",
    "literal",
    "overlap",
    "pattern_of_filter",
]

SUBJECT_BYTES_MAX = 255
"""NATS advises fewer than 256; the server's own limit is the 4,096 of a protocol line."""

_TOKEN = re.compile(r"[!-)+-\-/-=?-~]+\Z")
"""Printable ASCII but ``.``, ``*`` and ``>``."""
_RESERVED = ("$", "_INBOX", "_R_")
"""Beginnings of the server's own subjects and of everybody's replies."""

TokenPattern = re.Pattern[str] | Literal[">"]
"""What one token may be, or :data:`MANY`."""
ONE: Literal["*"] = "*"
MANY: Literal[">"] = ">"
"""One token or more, each whatever it likes; in a template it may stand before others."""
ANY = re.compile(r"[^.]+")
"""One token, whatever it is."""


def literal(token: str) -> re.Pattern[str]:
    """Give the pattern of ``token`` and no other."""
    return re.compile(re.escape(token))


def is_token(text: str) -> bool:
    """True when ``text`` can be one token of a subject to publish to."""
    return _TOKEN.match(text) is not None


def fault_of_subject(subject: str) -> str | None:
    """Say what is wrong with ``subject`` as one to publish to; None when nothing is."""
    return _fault(subject, wildcards=False)


def fault_of_filter(subject: str) -> str | None:
    """Say what is wrong with ``subject`` as one to read, with wildcards; None when nothing is."""
    return _fault(subject, wildcards=True)


def _fault(subject: str, *, wildcards: bool) -> str | None:
    if not subject:
        return "a subject must not be empty"
    if len(subject) > SUBJECT_BYTES_MAX:
        return f"a subject has at most {SUBJECT_BYTES_MAX} characters"
    if subject.startswith(_RESERVED):
        return f"subjects that begin with {', '.join(_RESERVED)} belong to NATS itself"
    tokens = subject.split(".")
    if "" in tokens:
        return "a subject has no empty token"
    for place, token in enumerate(tokens, 1):
        if wildcards and (token == ONE or (token == MANY and place == len(tokens))):
            continue
        if not is_token(token):
            return (
                "a token is * alone, > alone at the end, or printable ASCII without blanks, * and >"
                if wildcards
                else "a token is printable ASCII without blanks, * and >"
            )
    return None


def pattern_of_filter(subject: str) -> tuple[TokenPattern, ...]:
    """Give the pattern of the subjects that a filter takes."""
    special: dict[str, TokenPattern] = {ONE: ANY, MANY: MANY}
    return tuple(special.get(token) or literal(token) for token in subject.split("."))


def overlap(pattern: Sequence[TokenPattern], subject_filter: str) -> bool:
    """True when a subject can fit ``pattern`` and be taken by ``subject_filter``."""
    tokens = subject_filter.split(".")

    @functools.cache
    def meet(mine: int, theirs: int) -> bool:
        if mine == len(pattern) or theirs == len(tokens):
            return mine == len(pattern) and theirs == len(tokens)
        part, token = pattern[mine], tokens[theirs]
        if token not in {ONE, MANY} and part != MANY and not part.fullmatch(token):
            return False
        return (
            meet(mine + 1, theirs + 1)
            or (part == MANY and meet(mine, theirs + 1))
            or (token == MANY and meet(mine + 1, theirs))
        )

    return meet(0, 0)
