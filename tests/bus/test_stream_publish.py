"""Publishing to a stream: by what the server answers, and by what it never says."""

from __future__ import annotations

from pathlib import Path

import nats
import pytest
from nats.js.api import StreamConfig
from streams import jetstream_server

from actor.bus.stream_publish import publish_to_stream


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (None, "no stream has acknowledged it"),
        (b"", "something else than a stream answered"),
        (b"[" * 100_000, "something else than a stream answered"),
        (b'{"stream": 1}', "something else than a stream answered"),
        (b'{"stream": "OTHER", "seq": 1}', "stream OTHER took it"),
        (b'{"error": {"code": 400, "description": "no"}}', "the stream refused it: no"),
        (b'{"stream": "S", "seq": 1}', None),
        (b'{"stream": "S", "seq": 1, "duplicate": true, "domain": "d"}', None),
    ],
)
async def test_only_the_streams_own_word_counts(body: bytes | None, why: str | None) -> None:
    """A duplicate is stored already; another stream, or another program, is no success."""

    async def request(*_message: object) -> bytes | None:
        return body

    assert await publish_to_stream(request, "S", "a", b"", None) == why


async def test_a_real_stream_takes_refuses_and_knows_it_already(tmp_path: Path) -> None:
    """Its words: stored, expected elsewhere, stored before."""
    with jetstream_server(tmp_path / "js") as server:
        client = await nats.connect(server.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["a"]))

        async def request(subject: str, payload: bytes, headers: dict[str, str] | None) -> bytes:
            return bytes((await client.request(subject, payload, headers=headers)).data)

        first = await publish_to_stream(request, "S", "a", b"1", {"Nats-Msg-Id": "x"})
        again = await publish_to_stream(request, "S", "a", b"2", {"Nats-Msg-Id": "x"})
        wrong = await publish_to_stream(request, "T", "a", b"3", {"Nats-Expected-Stream": "T"})
        stored = (await js.stream_info("S")).state.messages
        await client.close()

    assert (first, again, stored) == (None, None, 1)
    assert wrong is not None
    assert "refused" in wrong
