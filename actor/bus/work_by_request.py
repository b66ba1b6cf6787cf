"""A rule's question asked of whichever actor is ready, by request/reply: ``try`` and ``replay``."""

from __future__ import annotations

from actor.bus.client import BusClient, NoAnswer, results_of
from actor.engine.base import Question, Work
from schemas.codec import codec_for
from schemas.decision import (
    Decision,
    Refused,
    Scored,
    ScoreReply,
    ScoreRequest,
    SharedReply,
    SharedRequest,
)
from schemas.errors import ErrorBody, TooLarge, body_of

__all__ = ["ask_work", "request_for"]

HEADER_BYTES = 512
"""Room for a request's headers; the server counts them too."""


def request_for(work: Work) -> ScoreRequest | SharedRequest:
    """Give the request that asks ``work``; each of its questions is one that can be asked."""
    questions = [question for question in work.questions if isinstance(question, Question)]
    if not work.shared:
        [only] = questions
        return ScoreRequest(
            state=work.state, question=only.question, options=only.options, id=only.id
        )
    decisions = tuple(
        Decision(id=each.id, question=each.question, options=each.options) for each in questions
    )
    return SharedRequest(state=work.state, decisions=decisions)


async def ask_work(
    client: BusClient, work: Work, *, timeout_s: float, background: bool = False
) -> ScoreReply | SharedReply | ErrorBody:
    """Give the answer, or the error of the whole request; raises :class:`NoAnswer`."""
    payload = codec_for(None).encode(request_for(work))
    limit = client.payload_bytes_max - HEADER_BYTES
    if len(payload) > limit:
        # Of the work, not of the connection: no other try would do better.
        return body_of(TooLarge("The request", size=len(payload), limit=limit, unit="bytes"))
    response = await client.ask(
        payload, shared=work.shared, timeout_s=timeout_s, background=background
    )
    if response.error is not None:
        return response.error
    if response.answer is None or not _fits(response.answer, work):
        raise NoAnswer("the reply answers another question; look who else answers there")
    return response.answer


def _fits(answer: ScoreReply | SharedReply, work: Work) -> bool:
    """Tell whether the reply has one result for each question: anybody may have sent it."""
    results = results_of(answer)
    return len(results) == len(work.questions) and all(
        isinstance(question, Question)
        and result.id == question.id
        and (isinstance(result, Refused) or _is_about(result, question))
        for result, question in zip(results, work.questions, strict=True)
    )


def _is_about(result: ScoreReply | Scored, question: Question) -> bool:
    options = tuple(option.id for option in question.options)
    return result.option_ids == options and result.choice in options
