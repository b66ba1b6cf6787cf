"""What a rule asks about an event, and what it publishes once that is answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from actor.engine.base import Work
from actor.rules.event import Event, Message, read_event
from actor.rules.outcomes import (
    BAD_STATE,
    BAD_SUBJECT,
    MISSING,
    MISSING_SKIPPED,
    NO_SINK,
    OTHERWISE,
    OVERSIZE,
    PUBLISHED,
    REFUSED,
    RETRY,
    TOO_DEEP,
    Outcome,
    StopEvent,
    Stopped,
)
from actor.rules.pointer import MISSING as NOTHING
from actor.rules.pointer import Pointer, lookup
from actor.rules.publication import Answer, Publication, publication
from actor.rules.rule import OnMissing, Rule, Sink
from actor.rules.template import BadSubject, render
from actor.wire_size import wire_bytes
from schemas.codec import check_json_value
from schemas.decision import Refused, ScoreReply, SharedReply, State
from schemas.errors import (
    ErrorBody,
    Invalid,
    Malformed,
    SemifError,
    body_of,
    worth_another_delivery,
)
from schemas.validation import check_state

__all__ = ["Asked", "Decided", "Limits", "ask", "decide", "refuse"]


class Limits(msgspec.Struct, frozen=True):
    """Of what is read and published."""

    event_bytes_max: int
    depth_max: int
    """Deepest nesting of a state."""
    publication_bytes_max: int
    """Largest message the server takes, headers included."""


class Asked(msgspec.Struct, frozen=True):
    """An event whose questions can be asked."""

    rule: Rule
    event: Event
    work: Work


class Decided(msgspec.Struct, frozen=True):
    """What to publish, and the outcome once every sink has taken its part."""

    outcome: Outcome
    publications: tuple[Publication, ...]


def ask(rule: Rule, message: Message, limits: Limits) -> Asked | Stopped:
    """Give the work that ``rule`` asks about an event, or why there is none."""
    try:
        event = read_event(
            message, rule.form, bytes_max=limits.event_bytes_max, hops_max=rule.hops_max
        )
        state = _state_of(rule, event.value, limits.depth_max)
        _check_subjects(rule, event)
    except StopEvent as stop:
        return stop.of(rule.name)
    questions = tuple(asking.question for asking in rule.asking)
    ids = tuple(question.id for question in questions)
    return Asked(rule, event, Work(len(questions) > 1, state, ids, questions))


def decide(asked: Asked, reply: ScoreReply | SharedReply, limits: Limits) -> Decided | Stopped:
    """Give what to publish for a reply to ``asked.work``, or why nothing is."""
    rule = asked.rule
    try:
        answers = _answers(rule, reply)
        sure = all(answer.sure for answer in answers)
        publications = _publications(asked, answers, reply, sure=sure)
        _check_sizes(publications, limits.publication_bytes_max)
    except StopEvent as stop:
        return stop.of(rule.name)
    return Decided(PUBLISHED if sure else OTHERWISE, publications)


def refuse(rule: Rule, error: SemifError | ErrorBody) -> Stopped:
    """Give the end of an event whose work was refused as a whole."""
    body = error if isinstance(error, ErrorBody) else body_of(error)
    return _refusal(body, "questions").of(rule.name)


def _refusal(error: ErrorBody, field: str) -> StopEvent:
    outcome = RETRY if worth_another_delivery(error) else REFUSED
    return StopEvent(outcome, field, error.code)


def _state_of(rule: Rule, value: Any, depth_max: int) -> State:
    state: State
    match rule.state:
        case None:
            state = value
        case Pointer() as pointer:
            state = _pick(pointer, value, "state", rule.on_missing)
        case picked:
            state = {
                each.name: _pick(each.pointer, value, f"state.{each.name}", rule.on_missing)
                for each in picked
            }
    if not isinstance(state, str | dict | list):
        raise StopEvent(BAD_STATE, "state", "is a number, a truth value or null")
    try:
        check_state(state)
        check_json_value(state, depth_max=depth_max)
    except Invalid:
        raise StopEvent(BAD_STATE, "state", "is empty") from None
    except Malformed:  # JSON has nothing else that it could refuse
        raise StopEvent(TOO_DEEP, "state", f"is nested deeper than {depth_max} levels") from None
    return state


def _pick(pointer: Pointer, value: Any, field: str, on_missing: OnMissing) -> Any:
    found = lookup(pointer, value)
    if found is not NOTHING:
        return found
    if on_missing == "null":
        return None
    outcome = MISSING_SKIPPED if on_missing == "skip" else MISSING
    raise StopEvent(outcome, field, f"{pointer.text} finds nothing")


def _check_subjects(rule: Rule, event: Event) -> None:
    """Find out before the model works for nothing: only the choice is not known yet."""
    longest = {asking.question.id: max(asking.routes, key=len) for asking in rule.asking}
    for place, sink in enumerate(rule.sinks):
        _subject(sink, place, event, longest)


def _subject(sink: Sink, place: int, event: Event, choices: Mapping[str, str]) -> str:
    try:
        return render(
            sink.subject, subject=event.message.subject, event=event.value, choices=choices
        )
    except BadSubject as error:
        raise StopEvent(BAD_SUBJECT, f"sinks[{place}].subject", str(error)) from None


def _answers(rule: Rule, reply: ScoreReply | SharedReply) -> tuple[Answer, ...]:
    results = (reply,) if isinstance(reply, ScoreReply) else reply.results
    answers = []
    refusals = []
    for asking, result in zip(rule.asking, results, strict=True):
        if isinstance(result, Refused):
            refusals.append(_refusal(result.error, f'question "{asking.question.id}"'))
            continue
        probability = max(result.probabilities)
        sure = probability >= asking.min_probability and result.margin >= asking.min_margin
        route = result.choice if sure or asking.otherwise is None else asking.otherwise
        answers.append(
            Answer(asking.question.id, result.choice, probability, result.margin, sure, route)
        )
    if refusals:
        # One that is refused for good is so again, however often the others are asked.
        raise next((each for each in refusals if each.outcome is REFUSED), refusals[0])
    return tuple(answers)


def _publications(
    asked: Asked, answers: tuple[Answer, ...], reply: ScoreReply | SharedReply, *, sure: bool
) -> tuple[Publication, ...]:
    rule, event = asked.rule, asked.event
    choices = {answer.question: answer.route for answer in answers}
    taken = ("always", "sure" if sure else "unsure")
    made = tuple(
        publication(
            rule,
            place,
            subject=_subject(sink, place, event, choices),
            event=event,
            answers=answers,
            reply=reply,
        )
        for place, sink in enumerate(rule.sinks)
        if sink.when in taken
    )
    if not made:
        raise StopEvent(NO_SINK, "sinks", f"none takes what is {taken[1]}")
    return made


def _check_sizes(publications: tuple[Publication, ...], bytes_max: int) -> None:
    size = max(wire_bytes(made.payload, made.headers) for made in publications)
    if size > bytes_max:
        raise StopEvent(OVERSIZE, "sinks", f"{size} bytes to publish, the limit is {bytes_max}")
