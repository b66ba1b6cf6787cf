"""From a message to work, and from scores to a reply."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor.engine.base import DecisionResult, Question, Scores, Work
from actor.settings import Settings
from actor.wire import (
    Incoming,
    answer_reply,
    answer_to_score,
    answer_to_shared,
    error_reply,
    is_background,
    read_timeout_s,
    read_work,
)
from schemas.codec import codec_for
from schemas.decision import ModelInfo, Refused, ServedBy, Timing
from schemas.errors import Invalid, Overloaded, TooLarge

SETTINGS = Settings()
OPTIONS = [{"id": "a", "description": "First"}, {"id": "b", "description": "Second"}]
TIMING = Timing(
    queue_ms=1, encode_ms=2, forward_ms=3, total_ms=6, batch_rows=1, prefix_tokens_reused=0
)
SERVED_BY = ServedBy(instance="i", scorer="reference", proof="p")
MODEL = ModelInfo(
    source="m", revision="r", dtype="bfloat16", torch_version="2", transformers_version="5"
)


def incoming(body: Any, *, shared: bool = False, headers: dict[str, str] | None = None) -> Incoming:
    """Give a message with a JSON body."""
    return Incoming(shared, msgspec.json.encode(body), headers or {}, 0.0, 1_048_576, "caller")


def result(*probabilities: float) -> DecisionResult:
    """Give a result with these probabilities."""
    return DecisionResult(
        id="d",
        option_ids=tuple("abcdef"[: len(probabilities)]),
        probabilities=probabilities,
        option_logits=tuple(0.0 for _ in probabilities),
        input_tokens=9,
        prompt_sha256="0",
        prompt_version="v",
        model=MODEL,
        readout="r",
        probability_status="s",
        forward_seconds=0.5,
        total_seconds=0.75,
    )


def scores(*results: Any) -> Scores:
    """Give scores of these results."""
    return Scores(results, 1.0, 1, 0)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({}, 30.0), ({"semif-timeout-ms": "1500"}, 1.5), ({"semif-timeout-ms": "600000"}, 600.0)],
)
def test_the_deadline_is_the_callers_or_the_default(
    headers: dict[str, str], seconds: float
) -> None:
    """Milliseconds on the wire, seconds inside."""
    assert read_timeout_s(headers, SETTINGS) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "+5", "1.5", "600001", "٣٠٠", "1_000", " 5", "0x10", "9" * 9999]
)
def test_a_deadline_that_is_no_number_of_milliseconds_is_refused(text: str) -> None:
    """Never ignored, never guessed; digits of other scripts are no digits here."""
    with pytest.raises(Invalid) as caught:
        read_timeout_s({"semif-timeout-ms": text}, SETTINGS)

    assert caught.value.field == "Semif-Timeout-Ms"


@pytest.mark.parametrize(
    ("body", "headers", "name"),
    [
        ({"id": "mine"}, {"nats-msg-id": "header"}, "mine"),
        ({}, {"nats-msg-id": "header"}, "header"),
        ({}, {"nats-msg-id": "x" * 999}, "x" * 256),
        ({}, {}, "decision"),
    ],
)
def test_a_decisions_id(body: dict[str, str], headers: dict[str, str], name: str) -> None:
    """The caller's, or the message's, bounded, or a fixed one."""
    request = {"state": "s", "question": "q", "options": OPTIONS} | body

    work = read_work(incoming(request, headers=headers), codec_for(None), SETTINGS)

    assert work.ids == (name,)


def shared_request(*ids: str | None) -> dict[str, Any]:
    """Give a shared request of decisions with these ids."""
    decision = {"question": "q", "options": OPTIONS}
    return {
        "state": "s",
        "decisions": [decision | ({} if name is None else {"id": name}) for name in ids],
    }


def test_decisions_of_a_shared_request_are_named_by_their_place() -> None:
    """Those without an id get their path."""
    message = incoming(shared_request(None, "mine", None), shared=True)

    work = read_work(message, codec_for(None), SETTINGS)

    assert work.ids == ("decisions[0]", "mine", "decisions[2]")
    assert all(isinstance(question, Question) for question in work.questions)


@pytest.mark.parametrize(
    ("ids", "field"),
    [
        (("a", "b", "a"), "decisions[2].id"),
        (("decisions[1]", None), "decisions[1].id"),
        (("", "x"), "decisions[0].id"),
        (("x", "y" * 257), "decisions[1].id"),
        ((), "decisions"),
        (tuple(str(n) for n in range(257)), "decisions"),
    ],
    ids=["equal", "equal to a path", "empty", "too long", "none", "too many"],
)
def test_ids_and_counts_are_of_the_whole_request(ids: tuple[str | None, ...], field: str) -> None:
    """Without them the caller could not tell the answers apart."""
    with pytest.raises(Invalid) as caught:
        read_work(incoming(shared_request(*ids), shared=True), codec_for(None), SETTINGS)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("probabilities", "choice", "margin"),
    [
        ((0.7, 0.3), "a", 0.4),
        ((0.3, 0.7), "b", 0.4),
        ((0.5, 0.5), "a", 0.0),
        ((0.2, 0.4, 0.4), "b", 0.0),
    ],
)
def test_the_choice_is_the_likeliest_and_the_first_of_equals(
    probabilities: tuple[float, ...], choice: str, margin: float
) -> None:
    """A tie goes to the option declared first, and its margin says that it was one."""
    reply = answer_to_score(scores(result(*probabilities)), TIMING, SERVED_BY)

    assert reply.choice == choice
    assert reply.margin == pytest.approx(margin)
    assert (reply.forward_seconds, reply.total_seconds) == (0.5, 0.75)


def test_a_shared_reply_keeps_order_and_errors() -> None:
    """Results and errors in the order asked, each under its id."""
    work = Work(True, "s", ("x", "y"), ())
    answer = answer_to_shared(
        work,
        scores(result(0.9, 0.1), TooLarge("Big", size=2, limit=1, unit="tokens")),
        TIMING,
        SERVED_BY,
    )

    first, second = answer.results
    assert not isinstance(first, Refused)
    assert isinstance(second, Refused)
    assert (second.id, second.error.code) == ("y", "too_large")
    encoded = msgspec.json.decode(msgspec.json.encode(answer))
    assert [each["outcome"] for each in encoded["results"]] == ["scored", "error"]


def test_a_reply_the_server_would_not_carry_is_refused() -> None:
    """Room for the headers is kept; at the limit it passes, one byte less does not."""
    answer = answer_to_score(scores(result(0.9, 0.1)), TIMING, SERVED_BY)
    codec = codec_for(None)
    size = len(codec.encode(answer))

    assert answer_reply(answer, codec, reply_bytes_max=size + 512).headers is None
    with pytest.raises(TooLarge):
        answer_reply(answer, codec, reply_bytes_max=size + 511)


def test_an_error_reply_has_the_service_headers() -> None:
    """ADR-32: text and number in headers, the rest in the body."""
    error = Overloaded("Full", limit=3, unit="requests", retry_after_ms=70)

    reply = error_reply(error, codec_for("application/msgpack"))

    assert reply.headers == {
        "Nats-Service-Error": "The queue is full",
        "Nats-Service-Error-Code": "429",
        "Content-Type": "application/msgpack",
    }
    assert msgspec.msgpack.decode(reply.payload) == {
        "error": {
            "code": "overloaded",
            "status": 429,
            "message": "Full, the limit is 3 requests.",
            "retryable": True,
            "retry_after_ms": 70,
        }
    }


@given(text=st.text(max_size=12))
def test_any_deadline_is_within_bounds_or_refused(text: str) -> None:
    """Compared with what the text says as a plain decimal number."""
    plain = re.fullmatch(r"[0-9]{1,6}", text)
    expected = int(text) if plain and 1 <= int(text) <= 600_000 else None
    try:
        seconds = read_timeout_s({"semif-timeout-ms": text}, SETTINGS)
    except Invalid:
        assert expected is None
    else:
        assert expected is not None
        assert seconds == expected / 1000


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=6).filter(any),
)
def test_choice_and_margin_of_any_probabilities(weights: list[int]) -> None:
    """Small whole weights, so that ties are frequent; worked out without sorting."""
    probabilities = tuple(weight / sum(weights) for weight in weights)

    reply = answer_to_score(scores(result(*probabilities)), TIMING, SERVED_BY)

    best = next(i for i, w in enumerate(weights) if all(w >= other for other in weights))
    runner_up = max(weights[:best] + weights[best + 1 :])
    assert reply.choice == "abcdef"[best]
    assert reply.margin == pytest.approx((weights[best] - runner_up) / sum(weights))
    assert reply.margin >= 0


def test_an_error_of_the_one_question_is_the_requests() -> None:
    """A score request has no place for an error beside its result."""
    with pytest.raises(TooLarge):
        answer_to_score(scores(TooLarge("Big", size=2, limit=1, unit="tokens")), TIMING, SERVED_BY)


def test_one_bad_decision_takes_its_own_place() -> None:
    """The others are asked; the error says which one and what."""
    request = shared_request("x", "y")
    request["decisions"][1] |= {"question": " "}

    work = read_work(incoming(request, shared=True), codec_for(None), SETTINGS)

    good, bad = work.questions
    assert isinstance(good, Question)
    assert isinstance(bad, Invalid)
    assert (work.ids, bad.field) == (("x", "y"), "decisions[1].question")
    assert bad.__traceback__ is None


def test_an_answer_in_messagepack_says_so() -> None:
    """JSON is the default and costs no header; the other one is named."""
    answer = answer_to_score(scores(result(0.9, 0.1)), TIMING, SERVED_BY)

    reply = answer_reply(answer, codec_for("application/x-msgpack"), reply_bytes_max=1_048_576)

    assert reply.headers == {"Content-Type": "application/msgpack"}
    assert msgspec.msgpack.decode(reply.payload)["choice"] == "a"
    assert error_reply(Invalid(), codec_for(None)).headers == {
        "Nats-Service-Error": "The request is not a valid decision",
        "Nats-Service-Error-Code": "422",
    }


def test_an_empty_id_of_the_callers_is_refused_and_an_empty_header_is_none() -> None:
    """Of the two only the body's is a choice of the caller's."""
    request = {"state": "s", "question": "q", "options": OPTIONS}

    work = read_work(incoming(request, headers={"nats-msg-id": ""}), codec_for(None), SETTINGS)

    assert work.ids == ("decision",)
    with pytest.raises(Invalid) as caught:
        read_work(incoming(request | {"id": ""}), codec_for(None), SETTINGS)
    assert caught.value.field == "id"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({}, False), ({"semif-priority": "normal"}, False), ({"semif-priority": "background"}, True)],
)
def test_background_work_says_so(headers: dict[str, str], *, expected: bool) -> None:
    """Without a word a request is as urgent as any."""
    assert is_background(headers) is expected


def test_an_unknown_priority_is_refused() -> None:
    """A typo must not make background work urgent."""
    with pytest.raises(Invalid) as caught:
        is_background({"semif-priority": "Background"})
    assert caught.value.field == "Semif-Priority"
