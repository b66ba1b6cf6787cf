"""Making and changing streams and consumers on a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from object_samples import RULES, SECOND, api, everything, make_all, make_stream, settings_of

from actor.bus.client import open_client
from actor.bus.embedded import EmbeddedServer
from actor.bus.objects.api import asking_as_client
from actor.bus.objects.apply import apply
from actor.bus.objects.look import Looked
from actor.bus.objects.wanted import wanted_objects


async def applied(server: EmbeddedServer, folder: Path) -> tuple[list[str], list[Looked]]:
    """Apply; gives what was told, and what is still different."""
    settings, told = settings_of(server.url, folder), list[str]()
    async with open_client(settings, "test") as client:
        wanted = wanted_objects(settings, RULES)
        looked = await apply(asking_as_client(client), wanted, replicas=1, tell=told.append)
    return told, [each for each in looked if each.differences]


async def config_of(client: Client, path: str) -> dict[str, Any]:
    """Give an object's configuration."""
    kind = "CONSUMER" if "." in path else "STREAM"
    config: dict[str, Any] = (await api(client, f"{kind}.INFO.{path}"))["config"]
    return config


async def test_what_is_missing_is_made(
    storing: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """Streams of ours and all consumers; a second time there is nothing left to do."""
    await make_stream(client, "ORDERS", {"subjects": ["orders.>"]})
    await make_stream(client, "OUT", {"subjects": ["out.>"]})

    told, left = await applied(storing, tmp_path)

    assert told == [
        "stream SEMIF_JOBS: made",
        "stream SEMIF_RESULTS: made",
        "stream SEMIF_DEAD: made",
        "consumer semif of SEMIF_JOBS: made",
        "consumer semif-sort of ORDERS: made",
    ]
    assert left == []
    jobs, consumer = (
        await config_of(client, "SEMIF_JOBS"),
        await config_of(client, "ORDERS.semif-sort"),
    )
    assert (jobs["subjects"], jobs["retention"]) == (["semif.v1.jobs.>"], "workqueue")
    assert (jobs["storage"], jobs["discard"]) == ("file", "new")
    assert jobs["duplicate_window"] == 120 * SECOND
    assert (consumer["filter_subject"], consumer["ack_policy"]) == ("orders.*", "explicit")
    assert (consumer["ack_wait"], consumer["max_deliver"]) == (30 * SECOND, -1)
    assert consumer["max_ack_pending"] == 256 * 64  # the queue of an actor, of 64 actors
    before = await everything(client)
    assert await applied(storing, tmp_path) == ([], [])
    assert await everything(client) == before


@pytest.mark.parametrize(
    ("retention", "expected"), [("limits", "new"), ("interest", "new"), ("workqueue", "all")]
)
async def test_a_rule_begins_where_its_stream_is_now(
    storing: EmbeddedServer, client: Client, tmp_path: Path, retention: str, expected: str
) -> None:
    """The past is for replay; a work queue has no past, only what is to do."""
    await make_all(client, {"ORDERS": {"retention": retention}, "ORDERS.semif-sort": None})

    told, left = await applied(storing, tmp_path)

    assert (told, left) == (["consumer semif-sort of ORDERS: made"], [])
    assert (await config_of(client, "ORDERS.semif-sort"))["deliver_policy"] == expected


CHANGED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"SEMIF_JOBS": {"subjects": ["semif.v1.jobs.a", "other.b"], "duplicate_window": SECOND}},
        {"subjects": ["other.b", "semif.v1.jobs.>"], "duplicate_window": 120 * SECOND},
    ),
    (
        {
            "SEMIF_JOBS": {
                "max_msgs": 9,
                "max_age": 60 * SECOND,
                "duplicate_window": SECOND,
                "max_msgs_per_subject": 1,
                "no_ack": True,
                "max_msg_size": 1000,
                "description": "kept",
            }
        },
        {
            "max_msgs": 9,
            "max_age": 0,
            "discard": "new",
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            "description": "kept",
        },
    ),
    (
        {
            "ORDERS.semif-sort": {
                "filter_subjects": ["orders.a", "orders.b"],
                "filter_subject": None,
                "ack_wait": SECOND,
                "backoff": [SECOND],
                "max_deliver": 3,
                "max_ack_pending": 1,
                "headers_only": True,
                "inactive_threshold": 3600 * SECOND,
                "max_batch": 1,
                "max_bytes": 1,
                "max_expires": SECOND,
                "description": "kept",
            }
        },
        {
            "filter_subject": "orders.*",
            "ack_wait": 30 * SECOND,
            "max_deliver": -1,
            "max_ack_pending": 16_384,
            "description": "kept",
        },
    ),
    (
        {"SEMIF_JOBS.semif": {"filter_subject": "semif.v1.jobs.a"}},
        {"filter_subject": "semif.v1.jobs.>"},
    ),
]


@pytest.mark.parametrize(("changes", "expected"), CHANGED)
async def test_what_can_be_changed_is_changed_and_the_rest_is_kept(
    storing: EmbeddedServer,
    client: Client,
    tmp_path: Path,
    changes: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    """An operator's own settings survive, as do the messages."""
    await make_all(client, changes)
    await client.publish("orders.1", b"an order")

    told, left = await applied(storing, tmp_path)

    assert [text.endswith(": changed") for text in told] == [True]
    assert left == []
    found = await config_of(client, *changes)
    assert {key: found.get(key) for key in expected} == expected
    state = (await api(client, "STREAM.INFO.ORDERS"))["state"]
    assert state["messages"] == 1


REFUSED: list[dict[str, Any]] = [
    {"SEMIF_JOBS": {"retention": "limits", "duplicate_window": SECOND}},
    {"SEMIF_DEAD": {"storage": "memory"}},
    {"SEMIF_RESULTS": {"sealed": True}},
    {"SEMIF_JOBS.semif": {"deliver_subject": "x"}},
    {"ORDERS.semif-sort": {"ack_policy": "all", "ack_wait": SECOND}},
    {"ORDERS.semif-sort": {"pause_until": "2099-01-01T00:00:00Z"}},
    {"SEMIF_JOBS.semif": None, "SEMIF_JOBS.rival": {"filter_subject": "semif.v1.jobs.a"}},
    {
        "SEMIF_JOBS.semif": {"filter_subject": "semif.v1.jobs.b"},
        "SEMIF_JOBS.rival": {"filter_subject": "semif.v1.jobs.a"},
    },
    {"OUT": {"duplicate_window": SECOND}},
    {"OUT": {"subjects": ["out.billing.*"]}},
    {"OUT": None},
    {"ORDERS": None, "ORDERS.semif-sort": None},
]


@pytest.mark.parametrize("changes", REFUSED, ids=lambda each: str(each)[:60])
async def test_what_would_lose_something_is_left_to_a_person(
    storing: EmbeddedServer, client: Client, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Neither that nor anything else of the same object is touched, nor what is the user's."""
    await make_all(client, changes)
    before = await everything(client)

    told, left = await applied(storing, tmp_path)

    assert told == []
    assert any(each.by_hand for looked in left for each in looked.differences)
    assert await everything(client) == before


async def test_what_the_server_refuses_is_told(
    storing: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """Its own words; the other objects are made all the same."""
    limits = {"consumer_limits": {"max_ack_pending": 300}}
    await make_all(client, {"SEMIF_JOBS": limits, "SEMIF_DEAD": None, "SEMIF_JOBS.semif": None})

    told, left = await applied(storing, tmp_path)

    assert told[0] == "stream SEMIF_DEAD: made"
    assert told[1].startswith("consumer semif of SEMIF_JOBS: not made: CONSUMER.CREATE.SEMIF_JOBS.")
    assert "max ack pending" in told[1]
    assert [looked.what for looked in left] == ["consumer semif of SEMIF_JOBS"]


async def test_a_stored_message_is_not_read_by_making_its_consumer(
    storing: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """A job waits for an actor: its stream and its consumer can be made around it."""
    await make_all(client, {"SEMIF_JOBS.semif": None})
    await client.request("semif.v1.jobs.a", json.dumps({}).encode())

    await applied(storing, tmp_path)

    assert (await api(client, "CONSUMER.INFO.SEMIF_JOBS.semif"))["num_pending"] == 1
