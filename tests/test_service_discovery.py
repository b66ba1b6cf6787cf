"""A whole actor is visible while it serves: from the first subscription to the drain."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import nats
import nats.errors
from in_process import actor_in_process
from micro_schemas import checked

from actor.bus.embedded import EmbeddedServer
from actor.settings import Settings


def queues_of(server: EmbeddedServer) -> dict[str, str | None]:
    """Give the server's own view of the actor: queue group by subject."""
    url = f"{server.monitor_url}/connz?subs=detail"
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - loopback
        connections: list[dict[str, Any]] = json.load(answer)["connections"]
    [actor] = [each for each in connections if each.get("name") == "semif-actor unit"]
    return {sub["subject"]: sub.get("qgroup") for sub in actor["subscriptions_list_detail"]}


async def test_discovery_lives_as_long_as_the_requests(server: EmbeddedServer) -> None:
    """Ready: found, with the figures of its heartbeat; after the drain nobody answers."""
    client = await nats.connect(server.url)
    settings = Settings(nats_url=server.url, instance="unit", device="cpu", heartbeat_s=3600)
    async with actor_in_process(settings, client) as beats:
        for _ in range(3):
            await client.request("semif.v1.status", timeout=10)
        stats = checked((await client.request("$SRV.STATS.semif.unit", timeout=10)).data)
        queues = queues_of(server)
        ready = beats[-1]
    gone = []
    for verb in ("PING", "INFO", "STATS"):
        try:
            await client.request(f"$SRV.{verb}", timeout=10)
        except nats.errors.NoRespondersError:
            gone.append(verb)
    await client.close()

    *_, status = stats["endpoints"]
    assert (status["num_requests"], status["num_errors"]) == (3, 0)
    assert status["processing_time"] > 0
    assert status["data"]["state"] == "ready"
    assert status["data"]["sequence"] > ready.sequence
    assert stats["metadata"]["proof"] == ready.proof == status["data"]["proof"]
    assert {subject: queue for subject, queue in queues.items() if queue} == {
        "semif.v1.score": "semif",
        "semif.v1.score_shared": "semif",
    }
    assert sum(subject.startswith("$SRV.") for subject in queues) == 9
    assert gone == ["PING", "INFO", "STATS"]


async def test_the_queue_group_can_be_turned_off(server: EmbeddedServer) -> None:
    """With an empty one no subscription of the actor has a queue group."""
    client = await nats.connect(server.url)
    settings = Settings(nats_url=server.url, instance="unit", device="cpu", queue_group="")
    async with actor_in_process(settings, client):
        queues = queues_of(server)
    await client.close()

    assert "semif.v1.score" in queues
    assert set(queues.values()) == {None}
