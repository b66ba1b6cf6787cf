"""A name belongs to one actor."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import nats
import pytest
from actors import decision
from in_process import actor_in_process

from actor.bus.connection import Connection, Refusal
from actor.bus.embedded import EmbeddedServer
from actor.bus.identity import prove_unique
from actor.service import Exit
from actor.settings import Settings


def settings_of(server: EmbeddedServer, instance: str = "twin") -> Settings:
    """Give the settings of an actor."""
    return Settings(nats_url=server.url, instance=instance, device="cpu", heartbeat_s=0.2)


async def test_the_second_actor_of_a_name_refuses_to_serve(server: EmbeddedServer) -> None:
    """It ends with the code of a failed proof; the first one serves on, alone."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")}
    environment |= {"SEMIF_NATS_URL": server.url, "SEMIF_INSTANCE": "twin", "SEMIF_DEVICE": "cpu"}
    command = ("-m", "actor.cli.bench.responders", "instant")
    watcher = await nats.connect(server.url)
    async with actor_in_process(settings_of(server), watcher) as beats:
        second = await asyncio.create_subprocess_exec(sys.executable, *command, env=environment)
        code = await second.wait()
        failed = [beat for beat in beats if beat.state == "failed"]
        reply = await watcher.request("semif.v1.score", json.dumps(decision()).encode(), timeout=5)
    await watcher.close()

    assert code == Exit.PROOF_FAILED
    assert [beat.reason for beat in failed] == [
        "bus: another actor is called twin; set SEMIF_INSTANCE"
    ]
    assert "choice" in json.loads(reply.data)


async def test_another_name_is_another_actor(server: EmbeddedServer) -> None:
    """A connection that answers for itself alone is unique, whoever else is there."""
    watcher = await nats.connect(server.url)
    async with actor_in_process(settings_of(server), watcher):
        connection = Connection(settings_of(server, "other"))
        await connection.open()

        async def answer(message: object) -> None:
            await connection.publish(message.reply, b'{"id":"other"}')  # type: ignore[attr-defined]

        await connection.subscribe("$SRV.PING.semif.other", answer)
        await prove_unique(settings_of(server, "other"), connection)
        await connection.close()
    await watcher.close()


async def test_an_actor_that_does_not_hear_itself_refuses(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deaf or not allowed to publish: either way it would not serve."""
    monkeypatch.setattr("actor.bus.identity.ANSWER_WITHIN_S", 0.05)
    connection = Connection(settings_of(server))
    await connection.open()

    with pytest.raises(Refusal, match="no answer to our own"):
        await prove_unique(settings_of(server), connection)
    await connection.close()
