"""The actor's own questions, and what becomes of them when the connection breaks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.bus.asking import Asker, Nobody, Unanswered
from actor.bus.connection import Connection
from actor.bus.embedded import EmbeddedServer
from actor.settings import Settings


@asynccontextmanager
async def asking(server: EmbeddedServer) -> AsyncIterator[tuple[Asker, Connection, Client]]:
    """Give one who asks, his connection, and a client to answer."""
    settings = Settings(nats_url=server.url, instance="unit", bus_lost_s=3.0)
    connection, other = Connection(settings), await nats.connect(server.url)
    await connection.open()
    asker = Asker(connection)
    await asker.open()
    await connection.confirm()
    try:
        yield asker, connection, other
    finally:
        await asker.close()
        await connection.close()
        await other.close()


async def answering(client: Client, subject: str, callback: Any) -> None:
    """Answer on ``subject`` from now on."""
    await client.subscribe(subject, cb=callback)
    await client.flush()
    await client.flush()  # the first one overtakes the SUB


async def test_many_questions_find_their_own_answers(server: EmbeddedServer) -> None:
    """Whatever the order of the answers."""

    async def echo(message: Msg) -> None:
        await asyncio.sleep(0)
        await message.respond(message.data)

    async with asking(server) as (asker, _, other):
        await answering(other, "echo", echo)
        questions = [str(number).encode() for number in range(200)]
        answers = await asyncio.gather(*(asker.ask("echo", q, within_s=5) for q in questions))

    assert [answer.data for answer in answers] == questions


async def test_nobody_is_an_answer(server: EmbeddedServer) -> None:
    """Without a listener the server says so at once; without an answer the time ends."""

    async def silent(_message: Msg) -> None:
        pass

    async with asking(server) as (asker, _, other):
        await answering(other, "silent", silent)
        with pytest.raises(Nobody):
            await asker.ask("nobody", b"", within_s=60)
        with pytest.raises(Unanswered, match=r"0\.05 s"):
            await asker.ask("silent", b"", within_s=0.05)
        with pytest.raises(Unanswered, match="sent"):
            await asker.ask("not a subject", b"", within_s=60)


async def test_what_never_went_out_leaves_no_word_in_the_log(server: EmbeddedServer) -> None:
    """Its time ends while there is no connection: asyncio must not complain that nobody looked."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, facts: complaints.append(facts))
    async with asking(server) as (asker, connection, _):
        broken = asyncio.Event()
        connection._client._disconnected_cb = told(broken)
        connection._client.abort()
        await broken.wait()
        with pytest.raises(Unanswered, match="no connection"):
            await asker.ask("echo", b"x", within_s=0.01)
        gc.collect()
        await asyncio.sleep(0)

    assert complaints == []


async def test_a_broken_connection_ends_the_wait(server: EmbeddedServer) -> None:
    """A question that was on the way is over when the connection is back, not at its deadline."""
    heard = asyncio.Event()

    async def silent(_message: Msg) -> None:
        heard.set()

    async with asking(server) as (asker, connection, other):
        await answering(other, "silent", silent)
        asked = asyncio.create_task(asker.ask("silent", b"", within_s=600))
        await heard.wait()
        connection._client.abort()
        with pytest.raises(Unanswered) as caught:
            await asked

    assert caught.value.broke


@pytest.mark.parametrize(("headers", "sent"), [({"Nats-Msg-Id": "a"}, 2), ({"Other": "a"}, 1)])
async def test_what_has_a_name_is_sent_again(
    server: EmbeddedServer, headers: dict[str, str], sent: int
) -> None:
    """A message with an id survives a broken connection; one without must not come twice."""
    heard: list[bytes] = []
    first = asyncio.Event()

    async def second_time(message: Msg) -> None:
        heard.append(message.data)
        first.set()
        if len(heard) == 2:
            await message.respond(b"stored")

    async with asking(server) as (asker, connection, other):
        await answering(other, "stream", second_time)
        asked = asyncio.create_task(asker.request("stream", b"x", headers))
        await first.wait()
        connection._client.abort()
        answer = await asked

    assert len(heard) == sent
    assert answer == (b"stored" if sent == 2 else None)


async def test_a_question_waits_for_the_connection(server: EmbeddedServer) -> None:
    """Asked while there is none, it is sent when there is one again."""

    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    async with asking(server) as (asker, connection, other):
        await answering(other, "echo", echo)
        broken = asyncio.Event()
        connection._client._disconnected_cb = told(broken)
        connection._client.abort()
        await broken.wait()
        answer = await asker.ask("echo", b"x", within_s=20)

    assert answer.data == b"x"


def told(event: asyncio.Event) -> Any:
    """Give a callback of nats-py that sets ``event``."""

    async def callback() -> None:
        event.set()

    return callback
