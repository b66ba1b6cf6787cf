"""Reading a stream without a consumer: by sequence, by subject and by time, over what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.js.api import StreamConfig
from rules_actor import publish_raw
from streams import jetstream_server

from actor.bus.client import open_client
from actor.bus.embedded import EmbeddedServer
from actor.bus.objects.api import NoApi, asking_as_client
from actor.bus.stored_events import (
    StreamBounds,
    bounds_of,
    first_at_or_after,
    nanoseconds,
    next_stored,
)
from actor.settings import Settings


@pytest.fixture
def js_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with jetstream_server(tmp_path / "js") as running:
        yield running


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-02T00:00:00.000000001Z", 86_400_000_000_001),
        ("2026-11-30T09:00:00+01:00", 1_796_025_600_000_000_000),
        ("2026-11-30T08:00:00.123456789Z", 1_796_025_600_123_456_789),
    ],
)
def test_times_have_nanoseconds(text: str, expected: int) -> None:
    """RFC 3339, by the Unix time that date(1) gives; no digit of the server's is lost."""
    assert nanoseconds(text) == expected


@pytest.mark.parametrize("text", ["", "now", "2026-11-30T09:00:00", "2026-11-30T25:00:00Z", "1.5"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    """A time without an offset is another moment on another machine."""
    with pytest.raises(ValueError, match=r"offset|isoformat|hour"):
        nanoseconds(text)


async def test_a_stream_is_read_over_its_gaps(js_server: EmbeddedServer) -> None:
    """The next message that fits, with its headers; also by time, where messages were deleted."""
    other = await nats.connect(js_server.url)
    js = other.jetstream()
    await js.add_stream(StreamConfig(name="S", subjects=["a.*", "b"]))
    for number in range(6):
        await js.publish("b" if number == 2 else "a.x", b"%d" % number, headers={"k": "v"})
    await js.delete_msg("S", 4)
    async with open_client(Settings(nats_url=js_server.url), "test") as client:
        ask = asking_as_client(client)
        assert await bounds_of(ask, "S") == StreamBounds(1, 6)
        found = []
        sequence = 0
        while (message := await next_stored(ask, "S", "a.*", sequence)) is not None:
            found.append(message)
            sequence = message.sequence + 1
        starts = [await first_at_or_after(ask, "S", each.timestamp_ns) for each in found]
        between = await first_at_or_after(ask, "S", found[2].timestamp_ns + 1)
        late = await first_at_or_after(ask, "S", found[-1].timestamp_ns + 1)
        with pytest.raises(NoApi, match="not found"):
            await next_stored(ask, "NONE", ">", 1)
    delivered = await (await js.subscribe("a.x", stream="S", ordered_consumer=True)).next_msg()
    await other.close()

    assert [(each.sequence, each.payload) for each in found] == [
        (1, b"0"),
        (2, b"1"),
        (5, b"4"),
        (6, b"5"),
    ]
    assert [each.headers for each in found] == [{"k": "v"}] * 4
    assert starts == [1, 2, 4, 6]  # 4 is gone: reading there gives 5
    assert (between, late) == (6, 7)
    tokens = delivered.reply.split(".")
    assert found[0].message_id == f"S.1.{tokens[7]}"


async def test_headers_that_cannot_be_read_are_told(js_server: EmbeddedServer) -> None:
    """As for a message that is delivered: the rule's outcome is bad_headers."""
    other = await nats.connect(js_server.url)
    await other.jetstream().add_stream(StreamConfig(name="S", subjects=["a"]))
    await publish_raw(js_server.url, "a", b"\xff" * 8, b"x")
    await other.close()

    async with open_client(Settings(nats_url=js_server.url), "test") as client:
        message = await next_stored(asking_as_client(client), "S", "a", 1)

    assert message is not None
    assert message.headers_unreadable


async def test_a_server_without_jetstream_is_told(server: EmbeddedServer) -> None:
    """At once, and in words."""
    async with open_client(Settings(nats_url=server.url), "test") as client:
        with pytest.raises(NoApi, match="JetStream"):
            await bounds_of(asking_as_client(client), "S")
