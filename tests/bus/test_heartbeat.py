"""Heartbeats and status: the same record, pushed and pulled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import nats
import nats.errors
import pytest
from nats.aio.client import Client

from actor.bus.connection import Connection
from actor.bus.embedded import EmbeddedServer
from actor.bus.heartbeat import HeartbeatPublisher
from actor.settings import Settings
from schemas.examples import EXAMPLES
from schemas.health import Heartbeat


def snapshot(sequence: int) -> Heartbeat:
    """Give a heartbeat that differs in its sequence number alone."""
    record = EXAMPLES["heartbeat"][""]
    assert isinstance(record, Heartbeat)
    return msgspec.structs.replace(record, sequence=sequence)


@pytest.fixture
async def connection(server: EmbeddedServer) -> AsyncIterator[Connection]:
    """Give an open connection."""
    opened = Connection(Settings(nats_url=server.url, instance="unit"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def watcher(server: EmbeddedServer) -> AsyncIterator[Client]:
    """Give another client of the same server."""
    client = await nats.connect(server.url)
    yield client
    await client.close()


async def test_the_first_beat_is_at_once_and_each_change_brings_one(
    connection: Connection, watcher: Client
) -> None:
    """With an interval of an hour, beats come at the start and at changes, numbered from 1."""
    settings = Settings(instance="unit", heartbeat_s=3600)
    publisher = HeartbeatPublisher(settings, connection, snapshot)
    beats = await watcher.subscribe("semif.v1.health.unit")
    await watcher.flush()
    await watcher.flush()
    running = asyncio.create_task(publisher.run())

    sequences = []
    for _ in range(3):
        sequences.append(json.loads((await beats.next_msg(5)).data)["sequence"])
        publisher.changed()
    running.cancel()

    assert sequences == [1, 2, 3]


async def test_beats_go_on_by_themselves(connection: Connection, watcher: Client) -> None:
    """Without a change they come at the interval."""
    settings = Settings(instance="unit", heartbeat_s=0.1)
    publisher = HeartbeatPublisher(settings, connection, snapshot)
    beats = await watcher.subscribe("semif.v1.health.unit")
    await watcher.flush()
    await watcher.flush()
    running = asyncio.create_task(publisher.run())

    first = [json.loads((await beats.next_msg(5)).data)["sequence"] for _ in range(4)]
    running.cancel()

    assert first == [1, 2, 3, 4]


async def test_status_is_the_heartbeat_on_request(connection: Connection, watcher: Client) -> None:
    """The answer is a whole heartbeat; after the end nobody answers."""
    publisher = HeartbeatPublisher(Settings(instance="unit"), connection, snapshot)
    await publisher.subscribe_status()
    await connection.confirm()

    answer = await watcher.request("semif.v1.status", timeout=5)

    assert json.loads(answer.data)["instance"] == snapshot(1).instance
    await publisher.end_status()
    with pytest.raises(nats.errors.NoRespondersError):
        await watcher.request("semif.v1.status", timeout=5)
