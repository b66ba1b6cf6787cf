"""Which reply subjects are answered: inboxes, and nothing else.

The caller chooses the reply subject, and the server checks what *we* may publish, not what the
caller may: an actor that answered everywhere would write to any subject it can reach for whoever
may ask it something, another service's requests or a JetStream acknowledgement among them.
"""

from __future__ import annotations

import re

from actor.settings import Settings

__all__ = ["REPLY_CHARS_MAX", "is_answerable", "reply_prefixes"]

REPLY_CHARS_MAX = 512
"""Longest reply subject in characters: twice what NATS advises for any subject."""

# \s is every white space of Unicode; the ranges are the control characters.
_TOKEN = r"[^\s\x00-\x1f\x7f-\x9f.*>]+"  # noqa: S105 - of a subject, not a secret
_match_tokens = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*\Z").match


def reply_prefixes(settings: Settings) -> tuple[str, ...]:
    """Give what a reply subject may start with; none is the start of a subject of our own."""
    return tuple(settings.reply_prefixes.split(","))


def is_answerable(reply_to: str, prefixes: tuple[str, ...]) -> bool:
    """Tell whether ``reply_to`` is an inbox under one of ``prefixes``. Called for each request."""
    return (
        reply_to.startswith(prefixes)
        and len(reply_to) <= REPLY_CHARS_MAX
        and _match_tokens(reply_to) is not None
    )
