"""Proofs that run the model: 6 and 10 of the design."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from actor.engine.base import DecisionResult, Question
from actor.engine.encoding import PromptEncoder, row_of
from actor.engine.ledger import Note, Refuted
from actor.engine.memory import GIB, DeviceMemory
from actor.engine.plain_encoding import PlainEncoder
from actor.engine.reference_scorer import ReferenceScorer
from schemas.decision import Option

__all__ = ["EVIDENCE", "KNOWN", "QUESTION", "prove_decision", "prove_peak", "words_to"]

Row = dict[str, Any]

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
KNOWN = row_of(EVIDENCE, QUESTION)
OTHER_EVIDENCE = {"message": "I cannot log in since I changed my phone number."}
SUM_TOLERANCE = 1e-6


def prove_decision(scorer: ReferenceScorer, note: Note) -> DecisionResult:
    """Prove that a decision scores, and give its result: the known answer of :data:`KNOWN`.

    Finite, a distribution, not the same for every letter, and not the same for other evidence.
    """
    result = scorer.score(KNOWN)
    other = scorer.score(row_of(OTHER_EVIDENCE, QUESTION))
    for each in (result, other):
        _check_distribution(each)
    if len(set(result.option_logits)) == 1:
        raise Refuted(f"Every letter has the logit {result.option_logits[0]}: nothing is decided.")
    if result.option_logits == other.option_logits:
        raise Refuted("Two different states have equal logits: the model does not read them.")
    best = max(range(len(result.option_ids)), key=result.probabilities.__getitem__)
    note.detail = f"{result.option_ids[best]} {result.probabilities[best]:.3f}"
    return result


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
    """Run the largest batches that will be allowed, then record the resting footprint.

    Two, because two things grow. Over one state of nearly ``max_tokens`` SemIf copies the prefix
    for each row: the most keys and values. Over a short state with long questions nothing is
    shared, and rows that all end elsewhere keep rows x ends logits of the whole vocabulary: the
    most activations. The second takes minutes on a CPU, where there is no cap to prove, so it
    runs on cards only.
    """
    batches = [_longest_state(encoder, batch_tokens_max, batch_rows_max)]
    if memory.cap_bytes:
        batches.append(_longest_questions(encoder, batch_tokens_max, batch_rows_max))
    shapes = []
    for rows in batches:
        results, _ = scorer.score_shared(rows)
        for result in results:
            _check_distribution(result)
        shapes.append(f"{len(rows)} prompts of {max(r.input_tokens for r in results)} tokens")
    peak_bytes = memory.reserved_bytes()
    memory.settle()
    note.detail = (
        f"{', '.join(shapes)}; "
        f"{peak_bytes / GIB:.2f} GiB held, {memory.resting_bytes / GIB:.2f} GiB at rest"
    )


def _longest_state(encoder: PromptEncoder, tokens_max: int, rows_max: int) -> list[Row]:
    """Give as many rows as fit, over a state that makes each prompt as long as it may be."""
    count = max(1, min(rows_max, tokens_max // encoder.tokens_max))
    state = "word" + " word" * max(words_to(encoder, encoder.tokens_max) - 1, 0)
    row = row_of(state, QUESTION)
    encoder.encode(state, QUESTION)  # its errors: a limit too small leaves nothing to prove
    return [row | {"id": f"row {index}"} for index in range(count)]


def _longest_questions(encoder: PromptEncoder, tokens_max: int, rows_max: int) -> list[Row]:
    """Give as many rows as may be, each as long as they may then be, and no two of one length."""
    base = len(encoder.encode("word", QUESTION).ids)
    count = max(1, min(rows_max, tokens_max // base))
    words = max(words_to(encoder, min(encoder.tokens_max, tokens_max // count)) - 1, 0)
    return [
        row_of("word", replace(QUESTION, question="word" + " word" * max(words - index, 0)))
        | {"id": f"row {index}"}
        for index in range(count)
    ]


def words_to(
    encoder: PromptEncoder | PlainEncoder, tokens: int, question: Question = QUESTION
) -> int:
    """Give how often " word" fits behind the state "word" in a prompt of ``tokens``."""
    base = len(encoder.encode("word", question).ids)
    ten_more = len(encoder.encode("word" + " word" * 10, question).ids) - base
    return max((tokens - base) * 10 // ten_more, 0)
