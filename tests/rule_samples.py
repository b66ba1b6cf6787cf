"""Rules, messages and replies for the tests of actor.rules."""

from __future__ import annotations

from typing import Any

from actor.rules.event import Message
from actor.rules.plan import Asked, Decided, Limits, ask, decide
from actor.rules.rule import Rule
from actor.rules.rulefile import parse
from schemas.decision import (
    ModelInfo,
    Refused,
    Scored,
    ScoreReply,
    ServedBy,
    SharedReply,
    Timing,
)
from schemas.errors import SemifError, body_of

LIMITS = Limits(event_bytes_max=10_000, depth_max=8, publication_bytes_max=10_000)

TOPIC = """
[[rules.questions]]
id = "topic"
question = "What is it about?"
options = [{id = "billing", description = "Money."}, {id = "other", description = "Not money."}]
"""
URGENCY = """
[[rules.questions]]
id = "urgency"
question = "When?"
options = [{id = "now", description = "At once."}, {id = "later", description = "Any time."}]
"""
SINK = """
[[rules.sinks]]
subject = "out.{rule}"
"""


def rule_text(
    keys: str = "",
    *,
    name: str = "r",
    source: str = '{ subject = "in.*" }',
    questions: str = TOPIC,
    sinks: str = SINK,
) -> str:
    """Give one rule as TOML; ``keys`` stand before its tables."""
    return f'[[rules]]\nname = "{name}"\nsource = {source}\n{keys}\n{questions}{sinks}'


def rule(keys: str = "", **parts: str) -> Rule:
    """Give one rule, checked."""
    [read] = parse(rule_text(keys, **parts), "rules.toml", prefix="semif.v1")
    return read


def message(
    payload: bytes = b'{"a": 1}',
    headers: dict[str, str] | None = None,
    *,
    subject: str = "in.x",
    id: str | None = None,  # noqa: A002 - the field's name
) -> Message:
    """Give an event as it comes from the bus."""
    return Message(subject, payload, headers or {}, id)


_SEMIF: dict[str, Any] = {
    "input_tokens": 1,
    "prompt_sha256": "0",
    "prompt_version": "1",
    "model": ModelInfo(
        source="m", revision="r", dtype="float32", torch_version="2", transformers_version="5"
    ),
    "readout": "",
    "probability_status": "",
}
_TIMING = Timing(
    queue_ms=0, encode_ms=0, forward_ms=0, total_ms=0, batch_rows=1, prefix_tokens_reused=0
)
_SERVED_BY = ServedBy(instance="a", scorer="fast", proof="abc")


def _result(name: str, choice: str, probability: float, ids: tuple[str, str]) -> dict[str, Any]:
    probabilities = tuple(probability if each == choice else 1 - probability for each in ids)
    return _SEMIF | {
        "id": name,
        "option_ids": ids,
        "probabilities": probabilities,
        "option_logits": (0.0, 0.0),
        "choice": choice,
        "margin": 2 * probability - 1,
    }


def score_reply(choice: str = "billing", probability: float = 0.75) -> ScoreReply:
    """Answer :data:`TOPIC`; the margin is ``2 * probability - 1``."""
    return ScoreReply(
        **_result("topic", choice, probability, ("billing", "other")),
        forward_seconds=0,
        total_seconds=0,
        timing=_TIMING,
        served_by=_SERVED_BY,
    )


def shared_reply(
    topic: float | SemifError = 0.75, urgency: float | SemifError = 0.75
) -> SharedReply:
    """Answer :data:`TOPIC` with ``billing`` and :data:`URGENCY` with ``later``, or refuse them."""
    asked = (
        ("topic", "billing", topic, ("billing", "other")),
        ("urgency", "later", urgency, ("now", "later")),
    )
    results = tuple(
        Refused(id=name, error=body_of(answer))
        if isinstance(answer, SemifError)
        else Scored(**_result(name, choice, answer, ids))
        for name, choice, answer, ids in asked
    )
    return SharedReply(results=results, timing=_TIMING, served_by=_SERVED_BY)


def asked(made: Rule, event: Message) -> Asked:
    """Ask, where nothing stands against it."""
    work = ask(made, event, LIMITS)
    assert isinstance(work, Asked), work
    return work


def decided(made: Rule, event: Message, reply: ScoreReply | SharedReply | None = None) -> Decided:
    """Ask and decide, where nothing stands against it."""
    end = decide(asked(made, event), reply or score_reply(), LIMITS)
    assert isinstance(end, Decided), end
    return end
