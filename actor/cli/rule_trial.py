"""``semif-actor rules try``: what rules make of one event, without publishing anything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec
from rich.text import Text

from actor.bus.client import BusClient, NoAnswer, open_client
from actor.bus.work_by_request import ask_work, request_for
from actor.cli.show import complain, console
from actor.rules import plan
from actor.rules.event import Message
from actor.rules.outcomes import Stopped
from actor.rules.plan import Asked, Decided, Limits
from actor.rules.publication import Publication
from actor.rules.rule import Asking, Rule, Sink
from actor.rules.template import BadSubject, render
from actor.settings import Settings
from schemas.errors import ErrorBody

__all__ = ["Trial", "try_event"]

PAYLOAD_BYTES_MAX = 1_048_576
"""A server's default, where none is there to ask."""
SHOWN_CHARS_MAX = 1_000
SUBJECTS_SHOWN_MAX = 64


@dataclass(frozen=True, slots=True)
class Trial:
    """An event, and the rules it goes through, each by itself."""

    rules: tuple[Rule, ...]
    payload: bytes
    headers: Mapping[str, str]
    subject: str | None
    """None: one that the rule reads."""


async def try_event(settings: Settings, trial: Trial, *, timeout_s: float) -> int:
    """Show what each rule makes of the event; 1 when one of them could not take it."""
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(open_client(settings, "semif-actor rules try"))
            reason = ""
        except NoAnswer as error:
            client, reason = None, str(error)
        limits = Limits(
            settings.request_bytes_max,
            settings.request_depth_max,
            client.payload_bytes_max if client else PAYLOAD_BYTES_MAX,
        )
        taken = [
            await _try_rule(rule, trial, limits, client, reason=reason, timeout_s=timeout_s)
            for rule in trial.rules
        ]
    return 0 if all(taken) else 1


async def _try_rule(
    rule: Rule,
    trial: Trial,
    limits: Limits,
    client: BusClient | None,
    *,
    reason: str,
    timeout_s: float,
) -> bool:
    subject = trial.subject or _subject_of(rule)
    _say(f"rule {rule.name}", f"an event of {subject}", style="bold")
    asked = plan.ask(rule, Message(subject, trial.payload, trial.headers), limits)
    if isinstance(asked, Stopped):
        return _show_end(asked)
    _say("  asked", _shortened(msgspec.json.encode(request_for(asked.work))))
    if client is not None:
        try:
            answer = await ask_work(client, asked.work, timeout_s=timeout_s)
        except NoAnswer as error:
            reason = str(error)
        else:
            if isinstance(answer, ErrorBody):
                return _show_end(plan.refuse(rule, answer))
            decided = plan.decide(asked, answer, limits)
            if isinstance(decided, Stopped):
                return _show_end(decided)
            _show_decided(decided)
            return True
    _show_possible(asked, reason)
    return True


def _subject_of(rule: Rule) -> str:
    """Make a subject that the rule reads."""
    tokens = rule.source.subject.split(".")
    return ".".join("example" if token in {"*", ">"} else token for token in tokens)


def _show_end(end: Stopped) -> bool:
    complain(f"  {end.outcome.code}", end.reason)
    _say("  what happens", f"{end.outcome.action}. {end.outcome.what}")
    return end.outcome.action == "skip"


def _show_decided(decided: Decided) -> None:
    _say("  outcome", f"{decided.outcome.code}. {decided.outcome.what}")
    for publication in decided.publications:
        _show_publication(publication)


def _show_publication(publication: Publication) -> None:
    _say("  published", publication.subject, style="bold green")
    for name, text in publication.headers.items():
        _say(f"    {name}", text)
    _say("    payload", _shortened(publication.payload))


def _show_possible(asked: Asked, reason: str) -> None:
    _say("  no decision", reason)
    for sink in asked.rule.sinks:
        for choices, subject in _possible(asked, sink):
            when = f" (when {sink.when})" if sink.when != "always" else ""
            _say(f"  published if {choices}" if choices else "  published", subject + when)


def _possible(asked: Asked, sink: Sink) -> Iterator[tuple[str, str]]:
    """Give each choice that changes the sink's subject, and that subject."""
    asking = asked.rule.asking
    told = [each for each in asking if _names(sink.subject.text, each, alone=len(asking) == 1)]
    others = {each.question.id: each.routes[0] for each in asking}
    ways = itertools.product(*(_routes(each) for each in told))
    for way in itertools.islice(ways, SUBJECTS_SHOWN_MAX):
        try:
            subject = render(
                sink.subject,
                subject=asked.event.message.subject,
                event=asked.event.value,
                choices=others | dict(way),
            )
        except BadSubject:  # not seen: asked found a subject for the longest choice
            continue
        yield ", ".join(f"{question} is {route}" for question, route in way), subject


def _names(template: str, asking: Asking, *, alone: bool) -> bool:
    return f"{{choice:{asking.question.id}}}" in template or (alone and "{choice}" in template)


def _routes(asking: Asking) -> Sequence[tuple[str, str]]:
    return [(asking.question.id, route) for route in dict.fromkeys(asking.routes)]


def _shortened(payload: bytes) -> str:
    text = payload.decode(errors="backslashreplace")
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."


def _say(what: str, text: str, *, style: str = "") -> None:
    console.print(Text.assemble(f"{what}: ", (text, style)), soft_wrap=True)
