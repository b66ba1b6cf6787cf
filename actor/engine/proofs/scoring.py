"""Proofs that run the model: 6 and 10 of the design."""

from __future__ import annotations

import math

from actor.engine.base import DecisionResult, Question
from actor.engine.encoding import PromptEncoder, row_of
from actor.engine.ledger import Note, Refuted
from actor.engine.memory import GIB, DeviceMemory
from actor.engine.reference_scorer import ReferenceScorer
from actor.engine.torch_engine import Canary
from schemas.decision import Option

__all__ = ["prove_decision", "prove_peak"]

QUESTION = Question(
    "canary",
    "Which queue should handle this request?",
    (
        Option(id="access", description="Account access and passwords"),
        Option(id="billing", description="Billing, payments and refunds"),
        Option(id="sales", description="Prices and new contracts"),
    ),
)
EVIDENCE = {"message": "I was charged twice and need a refund today."}
OTHER_EVIDENCE = {"message": "I cannot log in since I changed my phone number."}
SUM_TOLERANCE = 1e-6


def prove_decision(scorer: ReferenceScorer, note: Note) -> Canary:
    """Prove that a decision scores, and give it with its logits as the canary.

    Finite, a distribution, not the same for every letter, and not the same for other evidence.
    """
    row = row_of(EVIDENCE, QUESTION)
    result = scorer.score(row)
    other = scorer.score(row_of(OTHER_EVIDENCE, QUESTION))
    for each in (result, other):
        _check_distribution(each)
    if len(set(result.option_logits)) == 1:
        raise Refuted(f"Every letter has the logit {result.option_logits[0]}: nothing is decided.")
    if result.option_logits == other.option_logits:
        raise Refuted("Two different states have equal logits: the model does not read them.")
    best = max(range(len(result.option_ids)), key=result.probabilities.__getitem__)
    note.detail = f"{result.option_ids[best]} {result.probabilities[best]:.3f}"
    return Canary(row, result.option_logits)


def _check_distribution(result: DecisionResult) -> None:
    if not all(math.isfinite(logit) for logit in result.option_logits):
        raise Refuted(f"The logits are {result.option_logits}: not finite.")
    total = math.fsum(result.probabilities)
    if not abs(total - 1.0) <= SUM_TOLERANCE:  # a NaN is not within anything
        raise Refuted(f"The probabilities sum to {total}.")


def prove_peak(
    scorer: ReferenceScorer,
    encoder: PromptEncoder,
    memory: DeviceMemory,
    *,
    batch_tokens_max: int,
    batch_rows_max: int,
    note: Note,
) -> None:
    """Run the largest batch that will be allowed, then record the resting footprint.

    ``score_shared`` over one state of nearly ``max_tokens``: SemIf copies the prefix for each
    row, so this is the most memory that keys and values can take. It is not the most that any
    request can: long questions over a short state compute more at once, and rows that all end at
    different positions keep rows x ends logits of the whole vocabulary.
    """
    state = _longest_state(encoder)
    rows_count = max(1, min(batch_rows_max, batch_tokens_max // encoder.tokens_max))
    rows = [row_of(state, QUESTION) | {"id": f"row {index}"} for index in range(rows_count)]
    results, _ = scorer.score_shared(rows)
    for result in results:
        _check_distribution(result)
    peak_bytes = memory.reserved_bytes()
    memory.settle()
    note.detail = (
        f"{rows_count} prompts of {results[0].input_tokens} tokens; "
        f"{peak_bytes / GIB:.2f} GiB held, {memory.resting_bytes / GIB:.2f} GiB at rest"
    )


def _longest_state(encoder: PromptEncoder) -> str:
    """Give a text whose prompt is as long as the limit allows, to within one word's tokens.

    Raises the encoder's errors: a limit too small for the question leaves nothing to prove.
    """
    base = encoder.tokens("word", QUESTION)
    ten_more = encoder.tokens("word" + " word" * 10, QUESTION) - base
    words = (encoder.tokens_max - base) * 10 // ten_more
    text = "word" + " word" * max(words - 1, 0)
    encoder.tokens(text, QUESTION)
    return text
