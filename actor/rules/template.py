"""Templates of the subjects that decisions are published to.

A template is a subject with placeholders, ``{name}`` or ``{name:argument}``::

    {rule}            the rule's name
    {subject}         the event's whole subject; a token of the template by itself
    {subject:2}       its second token, counted from 1
    {choice}          the option chosen, of a rule with one question
    {choice:kind}     the option chosen for question "kind"
    {event:/order/id} the field of the event that a JSON Pointer names

What stands for a placeholder is one token or a part of one: a value with ``.``, a blank, ``*`` or
``>`` in it gives no subject at all, so no event can send its decision where the rule does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actor.rules.pointer import Pointer, PointerError, lookup, parse_pointer
from actor.rules.subject import (
    ANY,
    TokenPattern,
    fault_of_subject,
    is_token,
    literal,
    pattern_of_filter,
)

__all__ = ["BadSubject", "Scope", "Template", "TemplateError", "compile_template", "render"]


class TemplateError(ValueError):
    """The text is no template that the rule can use; the message says why."""


class BadSubject(ValueError):
    """No subject can be made for this event; the message holds nothing of it."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a rule offers its templates."""

    rule: str
    source: tuple[str, ...]
    """Tokens of the subject that the rule reads, wildcards included."""
    choices: Mapping[str, tuple[str, ...]]
    """Question -> every name that its ``{choice}`` can have."""
    has_fields: bool
    """False for text, which has no fields."""


@dataclass(frozen=True, slots=True)
class _WholeSubject:
    pass


@dataclass(frozen=True, slots=True)
class _SubjectToken:
    place: int


@dataclass(frozen=True, slots=True)
class _Choice:
    question: str


@dataclass(frozen=True, slots=True)
class _Field:
    pointer: Pointer


_Part = str | _WholeSubject | _SubjectToken | _Choice | _Field


@dataclass(frozen=True, slots=True)
class Template:
    """A checked template."""

    text: str
    tokens: tuple[tuple[_Part, ...], ...]
    pattern: tuple[TokenPattern, ...]
    """What its subjects can look like: for finding loops."""


_PIECE = re.compile(r"\{(?P<name>[a-z]+)(?::(?P<argument>[^{}]*))?\}|(?P<text>[^{}]+)")
_PLACE = re.compile(r"[1-9][0-9]{0,2}\Z")


def compile_template(text: str, scope: Scope) -> Template:
    """Check ``text`` against what the rule offers; raises :class:`TemplateError`."""
    tokens: list[list[_Part]] = [[]]
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise TemplateError("a brace belongs to no placeholder")
        at = piece.end()
        if piece["text"] is None:
            tokens[-1].append(_placeholder(piece["name"], piece["argument"], scope))
            continue
        first, *others = piece["text"].split(".")
        tokens[-1].append(first)
        tokens.extend([part] for part in others)
    parts = tuple(tuple(part for part in token if part) for token in tokens)
    _check_tokens(parts)
    pattern = tuple(each for token in parts for each in _pattern_of(token, scope))
    return Template(text, parts, pattern)


def _placeholder(name: str, argument: str | None, scope: Scope) -> _Part:
    match name, argument:
        case "rule", None:
            return scope.rule
        case "subject", None:
            return _WholeSubject()
        case "subject", str(place):
            return _subject_token(place, scope)
        case "choice", None:
            if len(scope.choices) > 1:
                raise TemplateError("{choice} needs the question's id, as in {choice:id}")
            return _choice(next(iter(scope.choices), ""), scope)
        case "choice", str(question):
            return _choice(question, scope)
        case "event", str(pointer):
            return _field(pointer, scope)
        case _:
            shown = f"{{{name}}}" if argument is None else f"{{{name}:{argument}}}"
            raise TemplateError(f"{shown} is no placeholder")


def _subject_token(text: str, scope: Scope) -> _SubjectToken:
    if not _PLACE.match(text):
        raise TemplateError("{subject:N} counts tokens from 1")
    place = int(text)
    if place > len(scope.source) and scope.source[-1] != ">":
        raise TemplateError(f"the source's subject has {len(scope.source)} tokens, not {place}")
    return _SubjectToken(place)


def _choice(question: str, scope: Scope) -> _Choice:
    if question not in scope.choices:
        raise TemplateError(f'there is no question "{question}"')
    for name in scope.choices[question]:
        if not is_token(name):
            raise TemplateError(f'"{name}" cannot be a part of a subject')
    return _Choice(question)


def _field(text: str, scope: Scope) -> _Field:
    if not scope.has_fields:
        raise TemplateError("text has no fields")
    try:
        pointer = parse_pointer(text)
    except PointerError as error:
        raise TemplateError(f"{{event:{text}}}: {error}") from None
    return _Field(pointer)


def _check_tokens(tokens: tuple[tuple[_Part, ...], ...]) -> None:
    for token in tokens:
        if len(token) > 1 and any(isinstance(part, _WholeSubject) for part in token):
            raise TemplateError("{subject} is a token by itself; use {subject:N} inside one")
    # "x" stands for what is not known yet: what is left to find fault with is the rule's own text.
    known = ["".join(part if isinstance(part, str) else "x" for part in token) for token in tokens]
    if fault := fault_of_subject(".".join(known)):
        raise TemplateError(fault)


def _pattern_of(token: tuple[_Part, ...], scope: Scope) -> tuple[TokenPattern, ...]:
    if isinstance(token[0], _WholeSubject):
        return pattern_of_filter(".".join(scope.source))
    return (re.compile("".join(_expression_of(part, scope) for part in token)),)


def _expression_of(part: _Part, scope: Scope) -> str:
    match part:
        case str():
            return re.escape(part)
        case _Choice(question):
            return "(?:" + "|".join(map(re.escape, scope.choices[question])) + ")"
        case _SubjectToken(place) if scope.source[place - 1 : place] not in ((), ("*",), (">",)):
            return literal(scope.source[place - 1]).pattern
        case _:
            return ANY.pattern


def render(template: Template, *, subject: str, event: Any, choices: Mapping[str, str]) -> str:
    """Make the subject for one event; raises :class:`BadSubject`.

    ``choices`` has a name for each question; ``event`` is what fields are looked up in.
    """
    source = subject.split(".")
    tokens = []
    for token in template.tokens:
        text = ""
        for part in token:
            match part:
                case str():
                    text += part
                case _Choice(question):
                    text += choices[question]
                case _SubjectToken(place):
                    if place > len(source):
                        raise BadSubject(f"the event's subject has no token {place}")
                    text += _token(source[place - 1], f"token {place} of the event's subject")
                case _Field(pointer):
                    text += _token(_as_text(lookup(pointer, event)), f"{{event:{pointer.text}}}")
                case _WholeSubject():
                    text += subject
        tokens.append(text)
    made = ".".join(tokens)
    if fault := fault_of_subject(made):
        raise BadSubject(fault)
    return made


def _token(text: str | None, what: str) -> str:
    if text is None or not is_token(text):
        raise BadSubject(f"{what} cannot be a part of a subject")
    return text


def _as_text(value: Any) -> str | None:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case _:  # nothing there, null, a fraction, an object, an array
            return None
