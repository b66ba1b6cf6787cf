"""A server with JetStream for a module's tests, and a client of it for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import nats
import pytest
from nats.aio.client import Client
from object_samples import remove_all

from actor.bus.embedded import EmbeddedServer, embedded_server


@pytest.fixture(scope="module")
def storing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Give a server with JetStream."""
    with embedded_server(tmp_path_factory.mktemp("storing"), jetstream=True) as running:
        yield running


@pytest.fixture
async def client(storing: EmbeddedServer) -> AsyncIterator[Client]:
    """Give a client of it, all streams removed."""
    connected = await nats.connect(storing.url)
    await remove_all(connected)
    yield connected
    await connected.close()
