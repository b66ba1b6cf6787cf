"""The golden examples are true: their figures belong together."""

from __future__ import annotations

import pytest
from semif_phase1.core import softmax, validate_row

from schemas.codec import codec_for
from schemas.decision import Refused, Scored, ScoreReply, ScoreRequest, SharedReply, SharedRequest
from schemas.errors import ERRORS, ErrorReply
from schemas.examples import EXAMPLES
from schemas.health import Heartbeat
from schemas.json_schema import MESSAGES


def scored_examples() -> list[Scored | ScoreReply]:
    found: list[Scored | ScoreReply] = []
    for variants in EXAMPLES.values():
        for record in variants.values():
            if isinstance(record, ScoreReply):
                found.append(record)
            elif isinstance(record, SharedReply):
                found += [result for result in record.results if isinstance(result, Scored)]
    return found


def test_every_message_has_an_example_of_its_own_type() -> None:
    """The plain one at least."""
    assert EXAMPLES.keys() == MESSAGES.keys()
    for message, variants in EXAMPLES.items():
        assert "" in variants
        assert all(isinstance(record, MESSAGES[message]) for record in variants.values())


@pytest.mark.parametrize("result", scored_examples(), ids=lambda result: result.id)
def test_probabilities_follow_from_the_logits(result: Scored | ScoreReply) -> None:
    """SemIf's own softmax, and the choice and margin by hand."""
    assert list(result.probabilities) == pytest.approx(softmax(list(result.option_logits)))
    assert len(result.option_ids) == len(result.probabilities)
    first, second = sorted(result.probabilities, reverse=True)[:2]
    assert result.choice == result.option_ids[result.probabilities.index(first)]
    assert result.margin == pytest.approx(first - second)


@pytest.mark.parametrize("message", ["score_reply", "shared_reply"])
def test_the_parts_of_the_time_fit_in_the_total(message: str) -> None:
    """Queue, encoding and forward are within the total."""
    reply = EXAMPLES[message][""]
    assert isinstance(reply, ScoreReply | SharedReply)
    timing = reply.timing
    assert timing.queue_ms + timing.encode_ms + timing.forward_ms <= timing.total_ms


def test_semif_takes_the_requests() -> None:
    """Its own validation, on the rows that the examples stand for."""
    for request in EXAMPLES["score_request"].values():
        assert isinstance(request, ScoreRequest)
        validate_row(
            {
                "id": request.id or "decision",
                "state": request.state,
                "question": request.question,
                "options": [{"id": o.id, "description": o.description} for o in request.options],
            }
        )


def test_the_shared_reply_answers_the_shared_request() -> None:
    """Result by result: the second decision is refused for its equal descriptions."""
    request, reply = EXAMPLES["shared_request"][""], EXAMPLES["shared_reply"][""]
    assert isinstance(request, SharedRequest)
    assert isinstance(reply, SharedReply)
    assert [result.id for result in reply.results] == ["urgent", "decisions[1]"]
    scored, refused = reply.results
    assert isinstance(scored, Scored)
    assert scored.option_ids == tuple(option.id for option in request.decisions[0].options)
    assert isinstance(refused, Refused)
    assert len({option.description for option in request.decisions[1].options}) == 1


def test_errors_are_rows_of_the_table() -> None:
    """Code, status and retryable belong together."""
    rows = {(error.code, error.status, error.retryable) for error in ERRORS}
    for record in EXAMPLES["error_reply"].values():
        assert isinstance(record, ErrorReply)
        assert (record.error.code, record.error.status, record.error.retryable) in rows


def test_the_heartbeats_count_right() -> None:
    """Received is answered, refused, unanswerable and still at work."""
    for beat in EXAMPLES["heartbeat"].values():
        assert isinstance(beat, Heartbeat)
        counters = beat.counters
        done = counters.answered + sum(counters.refused.values()) + counters.unanswerable
        assert counters.received == done + beat.queue.jobs
        assert counters.expired == counters.refused.get("deadline_exceeded", 0)


@pytest.mark.parametrize("media_type", ["application/json", "application/msgpack"])
@pytest.mark.parametrize("message", MESSAGES)
def test_examples_round_trip(message: str, media_type: str) -> None:
    """Encoded and read back, each is equal to itself."""
    codec = codec_for(media_type)
    for record in EXAMPLES[message].values():
        assert codec.decode(codec.encode(record), MESSAGES[message]) == record
