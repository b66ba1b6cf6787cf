"""Work asked by request: as the contract has it, and no reply taken that answers something else."""

from __future__ import annotations

import json

import msgspec
import nats
import pytest
from nats.aio.msg import Msg
from rule_samples import TOPIC, URGENCY, asked, message, rule, score_reply, shared_reply

from actor.bus.client import NoAnswer, open_client
from actor.bus.embedded import EmbeddedServer
from actor.bus.work_by_request import ask_work, request_for
from actor.settings import Settings
from schemas.codec import codec_for
from schemas.decision import ScoreReply, SharedReply
from schemas.errors import ErrorBody, ErrorReply, Invalid, body_of

ONE = asked(rule(), message(b'{"a": 1}')).work
TWO = asked(rule(questions=TOPIC + URGENCY), message(b'{"a": 1}')).work


def test_one_question_is_a_score_request_and_several_are_a_shared_one() -> None:
    """With the fields of the wire contract, and nothing else."""
    billing = [
        {"id": "billing", "description": "Money."},
        {"id": "other", "description": "Not money."},
    ]
    one, two = (json.loads(codec_for(None).encode(request_for(work))) for work in (ONE, TWO))

    assert one == {
        "state": {"a": 1},
        "question": "What is it about?",
        "options": billing,
        "id": "topic",
    }
    assert two["state"] == {"a": 1}
    assert [each["id"] for each in two["decisions"]] == ["topic", "urgency"]
    assert two["decisions"][0]["options"] == billing


async def asked_of(server: EmbeddedServer, body: bytes, *, shared: bool, code: str = "") -> object:
    """Ask a responder that answers everything with ``body``."""
    responder = await nats.connect(server.url)

    async def answer(request: Msg) -> None:
        headers = {"Nats-Service-Error-Code": code} if code else None
        await responder.publish(request.reply, body, headers=headers)

    await responder.subscribe("semif.v1.*", cb=answer)
    await responder.flush()
    await responder.flush()  # the first one overtakes the SUB
    async with open_client(Settings(nats_url=server.url), "test") as client:
        try:
            return await ask_work(client, TWO if shared else ONE, timeout_s=5)
        finally:
            await responder.close()


def change(reply: ScoreReply, **changes: object) -> ScoreReply:
    return msgspec.structs.replace(reply, **changes)


@pytest.mark.parametrize("reply", [score_reply(), shared_reply(), shared_reply(topic=Invalid())])
async def test_an_answer_that_fits_is_given(
    reply: ScoreReply | SharedReply, server: EmbeddedServer
) -> None:
    """One question, several, and several of which one was refused."""
    body = codec_for(None).encode(reply)

    assert await asked_of(server, body, shared=isinstance(reply, SharedReply)) == reply


async def test_an_error_is_given_as_it_is(server: EmbeddedServer) -> None:
    """Whether to come back is in it."""
    error = body_of(Invalid())
    body = codec_for(None).encode(ErrorReply(error=error))

    assert await asked_of(server, body, shared=False, code="422") == error


@pytest.mark.parametrize(
    "reply",
    [
        change(score_reply(), id="another"),
        change(score_reply(), option_ids=("other", "billing")),
        change(score_reply(), choice="somewhere.else"),
        change(shared_reply(), results=shared_reply().results[:1]),  # type: ignore[arg-type]
        change(shared_reply(), results=shared_reply().results[::-1]),  # type: ignore[arg-type]
    ],
)
async def test_an_answer_to_something_else_is_none(
    reply: ScoreReply | SharedReply, server: EmbeddedServer
) -> None:
    """Anybody may answer on a request subject: no choice that the rule does not have goes on."""
    body = codec_for(None).encode(reply)

    with pytest.raises(NoAnswer, match="another question"):
        await asked_of(server, body, shared=isinstance(reply, SharedReply))


async def test_work_that_no_message_can_carry_is_refused_for_good(server: EmbeddedServer) -> None:
    """An event may fit where its questions beside it do not; the server would hang up."""
    made = rule(questions=TOPIC.replace("What is it about?", "a" * 1_100_000))
    work = asked(made, message(b'{"a": 1}')).work
    async with open_client(Settings(nats_url=server.url), "test") as client:
        found = await ask_work(client, work, timeout_s=5)

    assert isinstance(found, ErrorBody)
    assert (found.code, found.retryable) == ("too_large", False)
