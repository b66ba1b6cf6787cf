"""Answers of JetStream's API that are not what was asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import nats
import pytest
from nats.aio.msg import Msg
from object_samples import RULES, settings_of

from actor.bus.connection import Connection, Refusal
from actor.bus.embedded import EmbeddedServer
from actor.bus.objects.look import check

ANSWERS = [
    b"{",
    b"[]",
    b"\xff",
    b"[" * 100_000,
    b'{"streams": 5, "config": {"name": "S"}}',
    b'{"config": {"name": "S", "subjects": [7]}, "streams": 1}',
    b'{"error": {"err_code": 10008, "description": "JetStream system temporarily unavailable"}}',
    b'{"error": "all of it", "streams": null}',
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: repr(answer[:40]))
async def test_an_answer_that_cannot_be_used_is_no_answer(
    server: EmbeddedServer, tmp_path: Path, answer: bytes
) -> None:
    """Whoever answers: jobs are refused, and an actor of requests starts and says what it knows."""
    settings = settings_of(server.url, tmp_path)
    plain = msgspec.structs.replace(settings, jobs=False, rules=None)
    pretender = await nats.connect(server.url)

    async def pretend(message: Msg) -> None:
        await message.respond(answer)

    await pretender.subscribe("$JS.API.>", cb=pretend)
    await pretender.flush()
    await pretender.flush()
    connection = Connection(settings)
    await connection.open()
    try:
        with pytest.raises(Refusal, match="JetStream is needed for jobs and rules: "):
            await check(connection, settings, RULES)
        said = await check(connection, plain, ())
    finally:
        await connection.close()
        await pretender.close()

    assert said.startswith("whether a stream takes requests is not known: STREAM.NAMES: ")
