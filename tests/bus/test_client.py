"""What a person's client makes of a bus on which anybody may talk, or which goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import nats
import pytest
from nats.aio.msg import Msg

from actor.bus.client import BusClient, NoAnswer, open_client
from actor.bus.embedded import EmbeddedServer
from actor.settings import Settings
from schemas.codec import codec_for
from schemas.examples import EXAMPLES
from schemas.health import Heartbeat
from schemas.subjects import ERROR_CODE_HEADER

GARBAGE = [b"", b"\xff", b"{", b"[]", b"null", b"{}", b"7", b'"x"', b"[" * 100_000, b"\0" * 1000]
ERROR = {ERROR_CODE_HEADER: "500"}


def example(name: str, **changes: Any) -> bytes:
    """Give a golden example as JSON, with fields changed."""
    body = json.loads(codec_for(None).encode(EXAMPLES[name][""]))
    return json.dumps(body | changes).encode()


@asynccontextmanager
async def answering(
    server: EmbeddedServer, replies: list[tuple[bytes, dict[str, str] | None]]
) -> AsyncIterator[BusClient]:
    """Give a client to whose requests of either kind somebody sends these replies, in turn."""
    waiting = iter(replies)
    responder = await nats.connect(server.url)

    async def on_message(message: Msg) -> None:
        body, headers = next(waiting)
        await responder.publish(message.reply, body, headers=headers)

    for subject in ("semif.v1.score", "semif.v1.score_shared"):
        await responder.subscribe(subject, cb=on_message)
    await responder.flush()
    await responder.flush()
    try:
        async with open_client(Settings(nats_url=server.url), "test") as client:
            yield client
    finally:
        await responder.close()


@pytest.mark.parametrize("shared", [False, True], ids=["score", "score_shared"])
async def test_a_reply_that_is_none_is_no_answer(server: EmbeddedServer, *, shared: bool) -> None:
    """Garbage, an error without its header, another kind of reply: said in words, not raised."""
    bodies = [*GARBAGE, example("error_reply"), example("heartbeat")]
    bodies += [example("score_reply" if shared else "shared_reply")]
    errors = [*GARBAGE, example("score_reply"), example("error_reply", error={"code": "x"})]
    replies = [*((body, None) for body in bodies), *((body, ERROR) for body in errors)]
    async with answering(server, replies) as client:
        for _ in replies:
            with pytest.raises(NoAnswer, match=r"cannot be read; .* semif\.v1\.score"):
                await client.ask(b"{}", shared=shared, timeout_s=5)


@pytest.mark.parametrize(
    "changes",
    [
        {"option_ids": [], "probabilities": []},
        {"option_ids": ["a"]},
        {"probabilities": [0.5]},
        {"probabilities": [2.0, -1.0, 0.0]},
        {"probabilities": [1e300, 0.0, 0.0]},
        {"probabilities": ["a", "b", "c"]},
    ],
    ids=str,
)
async def test_an_answer_that_is_none_is_no_answer(
    server: EmbeddedServer, changes: dict[str, Any]
) -> None:
    """Each option has its probability, or there is nothing to show."""
    single = example("score_reply", **changes)
    results = json.loads(example("shared_reply"))["results"]
    shared = example("shared_reply", results=[*results, results[0] | changes])
    async with answering(server, [(single, None), (shared, None)]) as client:
        for kind in (False, True):
            with pytest.raises(NoAnswer, match="cannot be read"):
                await client.ask(b"{}", shared=kind, timeout_s=5)


async def test_answers_and_errors_are_told_apart(server: EmbeddedServer) -> None:
    """By the error header alone; the bytes are kept as they came."""
    replies = [
        (example("score_reply"), None),
        (example("shared_reply"), None),
        (example("error_reply"), ERROR),
    ]
    async with answering(server, replies) as client:
        single = await client.ask(b"{}", timeout_s=5)
        shared = await client.ask(b"{}", shared=True, timeout_s=5)
        refused = await client.ask(b"{}", timeout_s=5)

    assert (single.answer, single.error) == (EXAMPLES["score_reply"][""], None)
    assert (shared.answer, shared.error) == (EXAMPLES["shared_reply"][""], None)
    assert refused.answer is None
    assert msgspec.to_builtins(refused.error) == json.loads(replies[2][0])["error"]
    assert [r.payload for r in (single, shared, refused)] == [body for body, _ in replies]


async def test_what_is_no_heartbeat_is_passed_over(server: EmbeddedServer) -> None:
    """Anybody may publish garbage beside an actor; the actor is found all the same."""
    beat = EXAMPLES["heartbeat"][""]
    assert isinstance(beat, Heartbeat)
    publisher = await nats.connect(server.url)
    async with open_client(Settings(nats_url=server.url), "test") as client:
        looking = asyncio.create_task(client.next_heartbeat("*", timeout_s=30))
        while not looking.done():
            for body in (*GARBAGE, example("score_reply"), codec_for(None).encode(beat)):
                await publisher.publish("semif.v1.health.x", body)
            await publisher.flush()

        assert await looking == beat
        assert client.unreadable
    await publisher.close()


async def test_nothing_but_garbage_is_no_heartbeat(server: EmbeddedServer) -> None:
    """The message tells that something is there, and cannot be read."""
    publisher = await nats.connect(server.url)
    async with open_client(Settings(nats_url=server.url), "test") as client:
        looking = asyncio.create_task(client.next_heartbeat("x", timeout_s=0.5))
        while not looking.done():
            await publisher.publish("semif.v1.health.x", b"\xff")
            await publisher.flush()

        with pytest.raises(NoAnswer, match=r"no heartbeat of x within 0.5 s; .* read: [1-9]"):
            await looking
    await publisher.close()


async def test_a_connection_that_breaks_is_no_answer(server: EmbeddedServer) -> None:
    """Before a question, or while a heartbeat is awaited: said in words, not raised."""
    async with open_client(Settings(nats_url=server.url), "test") as client:
        looking = asyncio.create_task(client.next_heartbeat("x", timeout_s=60))
        publisher = await nats.connect(server.url)
        while not client.unreadable:  # until it listens
            await publisher.publish("semif.v1.health.x", b"")
            await publisher.flush()
        await publisher.close()
        server.process.kill()

        with pytest.raises(NoAnswer, match="broke"):
            await looking
        with pytest.raises(NoAnswer, match="broke"):
            await client.ask(b"{}", timeout_s=5)
        with pytest.raises(NoAnswer, match="broke"):
            await client.next_heartbeat("x", timeout_s=5)
