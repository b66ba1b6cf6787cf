"""One event's way through one rule: ask, decide, publish. Whoever asks and publishes is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from actor.bus.delivery import Delivery
from actor.engine.base import Work
from actor.rules import plan
from actor.rules.event import Message
from actor.rules.outcomes import BAD_HEADERS, UNPUBLISHED, Outcome, StopEvent, Stopped
from actor.rules.plan import Asked, Limits
from actor.rules.publication import Publication
from actor.rules.rule import Rule
from schemas.decision import ScoreReply, SharedReply
from schemas.errors import ErrorBody, SemifError

__all__ = ["Decide", "Publish", "carry_out"]

Decide = Callable[[Work], Awaitable[ScoreReply | SharedReply | ErrorBody]]
"""Answers, or gives or raises the error of the whole work."""
Publish = Callable[[Publication], Awaitable[str | None]]
"""Gives why it was not taken; None when it was."""


async def carry_out(
    rule: Rule, delivery: Delivery, limits: Limits, decide: Decide, publish: Publish
) -> Outcome | Stopped:
    """Give what became of the event."""
    if delivery.headers_unreadable:
        return StopEvent(BAD_HEADERS, "event", "its headers cannot be read").of(rule.name)
    message = Message(
        delivery.subject, delivery.payload, delivery.headers, delivery.message_id or None
    )
    asked = plan.ask(rule, message, limits)
    if isinstance(asked, Stopped):
        return asked
    decided = await _decide(asked, limits, decide)
    if isinstance(decided, Stopped):
        return decided
    for publication in decided.publications:
        # One after the other, so that whoever reads two sinks finds them in the file's order.
        if (reason := await publish(publication)) is not None:
            return StopEvent(UNPUBLISHED, "sinks", reason).of(rule.name)
    return decided.outcome


async def _decide(asked: Asked, limits: Limits, decide: Decide) -> plan.Decided | Stopped:
    try:
        reply = await decide(asked.work)
    except SemifError as error:
        return plan.refuse(asked.rule, error)
    if isinstance(reply, ErrorBody):
        return plan.refuse(asked.rule, reply)
    return plan.decide(asked, reply, limits)
