"""Other actors of the group, by what their heartbeats say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actor.bus.connection import Connection
from actor.bus.embedded import EmbeddedServer
from actor.bus.peers import Peers
from actor.settings import Settings
from schemas.examples import EXAMPLES
from schemas.health import Heartbeat

TIMEOUT_S = 20.0


def beat(*, taking: bool = True, group: str = "semif", **changes: Any) -> bytes:
    """Give a heartbeat of an actor called ``peer``."""
    example = EXAMPLES["heartbeat"][""]
    assert isinstance(example, Heartbeat)
    bus = msgspec.structs.replace(example.bus, taking=taking, queue_group=group)
    changed = {"instance": "peer", "state": "ready", "interval_s": 60.0, "bus": bus} | changes
    return msgspec.json.encode(msgspec.structs.replace(example, **changed))


class Listening:
    """An actor's peers, and how often one of them left."""

    def __init__(self, server: EmbeddedServer) -> None:
        settings = Settings(nats_url=server.url, instance="own")
        self.connection = Connection(settings)
        self.left = 0
        self.peers = Peers(settings, self.connection, on_leave=self.count)

    def count(self) -> None:
        self.left += 1

    async def hear(self, *beats: bytes) -> None:
        """Publish heartbeats, and wait until they have come."""
        for each in beats:
            assert await self.connection.publish("semif.v1.health.peer", each)
        await self.connection.barrier()
        await self.connection.barrier()


@pytest.mark.parametrize(
    ("last", "free", "left"),
    [
        (beat(), True, 0),
        (beat(taking=False), False, 1),
        (beat(state="draining"), False, 1),
        (beat(group="other"), True, 0),  # nothing to do with us
        (beat(instance="own", taking=False), True, 0),
        (b"{", True, 0),
        (b"[" * 100_000, True, 0),
    ],
)
async def test_a_peer_is_free_until_it_says_otherwise(
    server: EmbeddedServer, last: bytes, *, free: bool, left: int
) -> None:
    """Its leaving is told once: what is out of the group already has nothing to leave."""
    listening = Listening(server)
    await listening.connection.open()
    await listening.peers.subscribe()
    await listening.connection.confirm()
    await listening.hear(beat(), last, last)

    assert (listening.peers.free, listening.left) == (free, left)
    await listening.peers.end()
    await listening.connection.close()


async def test_only_a_new_word_of_a_peer_that_takes_requests_counts(
    server: EmbeddedServer,
) -> None:
    """What it said before it was asked proves nothing: it may be dead by now."""
    listening = Listening(server)
    await listening.connection.open()
    await listening.peers.subscribe()
    await listening.connection.confirm()
    await listening.hear(beat())

    assert not await listening.peers.heard(0.05)
    await listening.connection.publish("semif.v1.health.peer", beat(taking=False))
    assert not await listening.peers.heard(0.05)
    await listening.connection.publish("semif.v1.health.peer", beat())
    assert await listening.peers.heard(TIMEOUT_S)
    await listening.peers.end()
    await listening.connection.close()
