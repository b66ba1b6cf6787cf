"""Discovery: what ``nats micro`` and the services clients of other languages see of an actor."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import pytest
from micro_schemas import checked
from nats.aio.client import Client

from actor import __version__
from actor.bus.connection import Connection
from actor.bus.discovery import ENDPOINTS, Discovery, service_metadata
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.settings import Settings
from actor.telemetry.endpoint_stats import EndpointCounters
from schemas.errors import Invalid, Overloaded
from schemas.examples import EXAMPLES
from schemas.health import Heartbeat

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "tests" / "nats_services" / "client.cjs"
BEAT = EXAMPLES["heartbeat"][""]
assert isinstance(BEAT, Heartbeat)
ENGINE = BEAT.engine
assert ENGINE is not None
VERBS = ("PING", "INFO", "STATS")
METADATA = {
    "schema": "urn:semif:v1",
    "model": "example-model",
    "revision": "0123456789abcdef0123456789abcdef01234567",
    "scorer": "reference",
    "proof": "abc",
    "max_payload": "1048576",
    "max_tokens": "4096",
    "options": "2-16",
}


@dataclass(slots=True)
class Found:
    """An actor's discovery, and what it is fed with."""

    discovery: Discovery
    counters: EndpointCounters


@asynccontextmanager
async def discoverable(
    server: EmbeddedServer, instance: str = "unit", **changes: Any
) -> AsyncIterator[Found]:
    """Run the discovery of one actor until the block ends."""
    settings = msgspec.structs.replace(
        Settings(nats_url=server.url, instance=instance, max_tokens=4096), **changes
    )
    connection = Connection(settings)
    await connection.open()
    assert ENGINE is not None
    metadata = service_metadata(settings, connection, ENGINE, proof="abc")
    counters = EndpointCounters(ENDPOINTS)
    beat = msgspec.json.encode(BEAT)
    discovery = Discovery(settings, connection, counters, lambda: beat, metadata)
    await discovery.subscribe()
    await connection.confirm()
    try:
        yield Found(discovery, counters)
    finally:
        await discovery.end()
        await connection.close()


@pytest.fixture
async def client(server: EmbeddedServer) -> AsyncIterator[Client]:
    """Give another client of the same server."""
    connected = await nats.connect(server.url)
    yield connected
    await connected.close()


async def asked(client: Client, subject: str, payload: bytes = b"") -> dict[str, Any]:
    """Ask one service, and check its answer against the protocol's schema."""
    return checked((await client.request(subject, payload, timeout=10)).data)


async def test_the_nine_subjects_have_answers_of_their_verb(
    server: EmbeddedServer, client: Client
) -> None:
    """Every service, those of the name, this one alone: each form, each verb, schema-valid."""
    async with discoverable(server):
        for verb in VERBS:
            for form in ("", ".semif", ".semif.unit"):
                answer = await asked(client, f"$SRV.{verb}{form}")
                assert answer["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
                assert (answer["name"], answer["id"]) == ("semif", "unit")
                assert (answer["version"], answer["metadata"]) == (__version__, METADATA)
        for other in ("$SRV.PING.other", "$SRV.PING.semif.other", "$SRV.PONG", "$SRV.PING.SEMIF"):
            with pytest.raises(nats.errors.NoRespondersError):
                await client.request(other, timeout=10)


async def test_info_names_the_endpoints_and_their_schemas(
    server: EmbeddedServer, client: Client
) -> None:
    """What to ask, where, in which group; the schemas named are those of the contract."""
    async with discoverable(server, subject_prefix="acme.v1", queue_group="pool"):
        info = await asked(client, "$SRV.INFO.semif")

    assert info["description"]
    assert [(e["name"], e["subject"], e["queue_group"]) for e in info["endpoints"]] == [
        ("score", "acme.v1.score", "pool"),
        ("score_shared", "acme.v1.score_shared", "pool"),
        ("status", "acme.v1.status", ""),
    ]
    ids = {json.loads(file.read_bytes())["$id"] for file in ROOT.glob("schemas/v1/*.json")}
    named = [schema for e in info["endpoints"] for schema in e["metadata"].values()]
    assert len(named) == 5
    assert set(named) <= ids


async def test_the_server_s_lower_limit_is_the_one_told(tmp_path: Path) -> None:
    """max_payload is the smaller of the server's limit and the actor's."""
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 65536", encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        client = await nats.connect(server.url)
        limits = []
        for own in (1_048_576, 1000):
            async with discoverable(server, request_bytes_max=own):
                limits.append((await asked(client, "$SRV.PING"))["metadata"]["max_payload"])
        await client.close()

    assert limits == ["65536", "1000"]


async def test_stats_count_error_replies_and_show_the_heartbeat(
    server: EmbeddedServer, client: Client
) -> None:
    """Three requests of 1, 2 and 4 ms, two refused: whole nanoseconds, and fixed text alone."""
    secret = Invalid("/etc/passwd", field="secret")
    async with discoverable(server) as actor:
        before = await asked(client, "$SRV.STATS.semif.unit")
        actor.counters.observe("score", 0.001)
        full = Overloaded("The queue", limit=1, unit="requests", retry_after_ms=1)
        actor.counters.observe("score", 0.002, full)
        actor.counters.observe("score", 0.004, secret)
        after = await asked(client, "$SRV.STATS.semif.unit")

    assert before["started"] == after["started"]
    age = datetime.now(UTC) - datetime.fromisoformat(after["started"])
    assert timedelta(0) <= age < timedelta(minutes=5)
    assert after["started"].endswith("Z")
    score, shared, status = after["endpoints"]
    assert score == {
        "name": "score",
        "subject": "semif.v1.score",
        "queue_group": "semif",
        "num_requests": 3,
        "num_errors": 2,
        "last_error": "invalid: The request is not a valid decision",
        "processing_time": 7_000_000,
        "average_processing_time": 2_333_333,
    }
    for untouched in (shared, status, before["endpoints"][0]):
        assert (untouched["num_requests"], untouched["num_errors"]) == (0, 0)
        assert (untouched["last_error"], untouched["average_processing_time"]) == ("", 0)
    assert status["data"] == json.loads(msgspec.json.encode(BEAT))
    assert "secret" not in json.dumps(after)


async def test_each_of_several_actors_answers(server: EmbeddedServer, client: Client) -> None:
    """No queue group: of three actors all three answer, by name and by the subject of all."""
    names = ("one", "two", "three")
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    async with (
        discoverable(server, "one"),
        discoverable(server, "two"),
        discoverable(server, "three"),
    ):
        for verb in VERBS:
            for form in ("", ".semif"):
                await client.publish(f"$SRV.{verb}{form}", reply=inbox)
                ids = [checked((await answers.next_msg(10)).data)["id"] for _ in names]
                assert sorted(ids) == sorted(names)
        only = await asked(client, "$SRV.PING.semif.two")
    assert only["id"] == "two"
    assert answers.pending_msgs == 0


@pytest.mark.parametrize("prefix", ["acme.$SRV", "SRV", "$SRV.west"])
async def test_the_prefix_can_be_moved(server: EmbeddedServer, client: Client, prefix: str) -> None:
    """Under another prefix the same answers come, and none under the usual one."""
    async with discoverable(server, srv_prefix=prefix):
        for verb in VERBS:
            assert (await asked(client, f"{prefix}.{verb}.semif.unit"))["id"] == "unit"
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request("$SRV.PING", timeout=10)


async def test_without_a_queue_group_the_endpoints_have_none(
    server: EmbeddedServer, client: Client
) -> None:
    """An empty name in both answers, which the schemas allow."""
    async with discoverable(server, queue_group=""):
        info, stats = await asked(client, "$SRV.INFO"), await asked(client, "$SRV.STATS")

    assert [e["queue_group"] for e in info["endpoints"] + stats["endpoints"]] == [""] * 6


async def test_the_longest_instance_name_is_a_service_id(
    server: EmbeddedServer, client: Client
) -> None:
    """128 characters, with each kind that a name may have."""
    instance = "aZ09_-" + "x" * 122
    async with discoverable(server, instance):
        assert (await asked(client, f"$SRV.PING.semif.{instance}"))["id"] == instance


async def test_the_end_answers_who_asked_before(server: EmbeddedServer, client: Client) -> None:
    """100 of each verb under way at the end: 300 answers; then nobody is there."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    async with discoverable(server) as actor:
        for _ in range(100):
            for verb in VERBS:
                await client.publish(f"$SRV.{verb}", reply=inbox)
        await client.flush()
        await client.flush()  # the first overtakes what is published
        await actor.discovery.end()

        for _ in range(300):
            checked((await answers.next_msg(10)).data)
        for verb in VERBS:
            for form in ("", ".semif", ".semif.unit"):
                with pytest.raises(nats.errors.NoRespondersError):
                    await client.request(f"$SRV.{verb}{form}", timeout=10)
        await actor.discovery.end()


async def test_odd_messages_do_no_harm(server: EmbeddedServer, client: Client) -> None:
    """Any payload, headers or reply subject, on all nine subjects: no answer but to inboxes."""
    got: list[str] = []

    async def on_message(message: Any) -> None:
        got.append(message.subject)

    for elsewhere in ("semif.v1.>", "other.>", "$JS.>"):
        await client.subscribe(elsewhere, cb=on_message)
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    odd = [b"", b"\xff\xfe", b"[" * 100_000, b"\0" * 1_000_000, b'{"type": 1}', b"+ACK"]
    replies = ["", "$SRV.PING", "semif.v1.score", "other.service", "$JS.API.INFO", "$JS.ACK.a.b"]
    async with discoverable(server):
        subjects = [
            f"$SRV.{verb}{form}" for verb in VERBS for form in ("", ".semif", ".semif.unit")
        ]
        for subject in subjects:
            for payload in odd:
                headers = {"Nats-Service-Error": "x", "X-Long": "y" * 5000}
                await client.publish(subject, payload, reply=inbox, headers=headers)
                answer = await answers.next_msg(10)
                assert answer.headers is None
                checked(answer.data)
            for reply in replies:
                await client.publish(subject, b"", reply=reply)
        # Behind them: what they set off would have come before these.
        for subject in subjects:
            await asked(client, subject)

    assert got == []
    assert answers.pending_msgs == 0


async def read_by_node(
    server: EmbeddedServer, modules: Path, *arguments: str
) -> dict[str, list[dict[str, Any]]]:
    """Give what the JavaScript services client reads."""
    node = await asyncio.create_subprocess_exec(
        *("node", str(CLIENT), server.url, *arguments),
        env=os.environ | {"NODE_PATH": str(modules)},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await node.communicate()
    assert node.returncode == 0
    found: dict[str, list[dict[str, Any]]] = json.loads(output)
    return found


async def test_the_javascript_services_client_reads_actors(
    server: EmbeddedServer, nats_services_modules: Path
) -> None:
    """All of a name, or one by its id, under the usual prefix and another."""
    async with (
        discoverable(server, "one"),
        discoverable(server, "two"),
        discoverable(server, "far", srv_prefix="acme.$SRV"),
    ):
        modules = nats_services_modules
        both = await read_by_node(server, modules, "", "semif", "", "2")
        two = await read_by_node(server, modules, "", "semif", "two", "1")
        far = await read_by_node(server, modules, "acme.$SRV", "", "", "1")

    for verb in ("ping", "info", "stats"):
        assert sorted(answer["id"] for answer in both[verb]) == ["one", "two"]
        assert [answer["id"] for answer in two[verb]] == ["two"]
        assert [answer["id"] for answer in far[verb]] == ["far"]
        assert all(answer["metadata"] == METADATA for answer in both[verb])
    [info], [stats] = two["info"], two["stats"]
    names = ["score", "score_shared", "status"]
    assert [endpoint["name"] for endpoint in info["endpoints"]] == names
    assert stats["endpoints"][2]["data"]["instance"] == "gpu-1"
