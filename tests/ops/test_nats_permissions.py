"""The server configuration of ops/nats, loaded into a real server and proved in both directions."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import msgspec
import nats
import pytest
from actors import decision
from in_process import actor_in_process
from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.bus.client import open_client
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.bus.objects.api import asking_as_client
from actor.bus.objects.apply import apply
from actor.bus.objects.look import look
from actor.bus.objects.wanted import wanted_objects
from actor.rules.rulefile import load
from actor.settings import Settings

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "ops" / "nats" / "nats-server.conf"
ANSWERED = ("actor", "client", "monitor")
USERS = (*ANSWERED, "admin")


def password_of(user: str) -> str:
    """Give the password that this test's environment holds for ``user``."""
    return f"{user}-Pa55"


@pytest.fixture(scope="module")
def permitting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Give a server with the configuration as it lies in ops/nats."""
    with pytest.MonkeyPatch.context() as patch:
        for user in USERS:
            patch.setenv(f"{user.upper()}_PASSWORD", password_of(user))
        patch.setenv("NATS_STORE", str(tmp_path_factory.mktemp("store")))
        with embedded_server(tmp_path_factory.mktemp("permitting"), config=CONFIG) as running:
            yield running


@asynccontextmanager
async def connected(server: EmbeddedServer, user: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """Give a connection of ``user``, its inboxes under its own prefix, and the server's errors."""
    errors: list[str] = []

    async def on_error(error: Exception) -> None:
        errors.append(str(error))

    client = await nats.connect(
        server.url,
        user=user,
        password=password_of(user),
        inbox_prefix=f"_INBOX_{user}",
        error_cb=on_error,
        allow_reconnect=False,
    )
    try:
        yield client, errors
    finally:
        await client.close()


def violations(server: EmbeddedServer) -> list[str]:
    """Give the server's own list of what it has refused."""
    lines = server.log.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if "violation" in line.lower()]


SRV = [
    f"$SRV.{verb}{who}" for verb in ("PING", "INFO", "STATS") for who in ("", ".semif", ".semif.me")
]
SCORE = ("semif.v1.score", "semif.v1.score_shared")
STREAMS = ("SEMIF_JOBS", "SEMIF_RESULTS", "SEMIF_DEAD")
LOOKING_AND_TAKING = [
    "API.STREAM.NAMES",
    *(f"API.STREAM.INFO.{stream}" for stream in STREAMS),
    "API.CONSUMER.LIST.SEMIF_JOBS",
    "API.CONSUMER.INFO.SEMIF_JOBS.semif",
    "API.CONSUMER.MSG.NEXT.SEMIF_JOBS.semif",
    "ACK.SEMIF_JOBS.semif.1.2.3.4.5",
]
MAKING = [
    *(f"STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE") for stream in STREAMS),
    "CONSUMER.CREATE.SEMIF_JOBS.semif.semif.v1.jobs.>",
]
HARMING = [
    *(f"STREAM.{verb}.SEMIF_JOBS" for verb in ("DELETE", "PURGE", "MSG.GET", "MSG.DELETE")),
    *(f"STREAM.{verb}.SEMIF_JOBS" for verb in ("SNAPSHOT", "RESTORE", "LEADER.STEPDOWN")),
    *("CONSUMER.DELETE.SEMIF_JOBS.semif", "CONSUMER.PAUSE.SEMIF_JOBS.semif"),
    *("DIRECT.GET.SEMIF_JOBS", "CONSUMER.DURABLE.CREATE.SEMIF_JOBS.semif"),
    *("CONSUMER.CREATE.SEMIF_JOBS.other", "CONSUMER.CREATE.SEMIF_JOBS.other.semif.v1.jobs.>"),
    *("STREAM.CREATE.ORDERS", "STREAM.UPDATE.ORDERS", "CONSUMER.CREATE.ORDERS.semif.orders"),
    "CONSUMER.MSG.NEXT.SEMIF_JOBS.other",
]

ALLOWED = [
    *(("actor", "subscribe", f"{subject} semif") for subject in SCORE),
    *(("actor", "subscribe", subject) for subject in ["semif.v1.status", *SRV]),
    *(("actor", "subscribe", s) for s in ("semif.v1.health.*", "_INBOX_actor.a")),
    # The server's own rule: where * may stand in a subscription, > may too. Nothing lies deeper.
    *((user, "subscribe", "semif.v1.health.>") for user in ("actor", "monitor")),
    *(("actor", "publish", s) for s in ("semif.v1.health.me", "$SRV.PING.semif.me")),
    *(("actor", "publish", f"_INBOX_{user}.a.b") for user in ANSWERED),
    *(("actor", "publish", f"$JS.{what}") for what in LOOKING_AND_TAKING),
    *(("actor", "publish", s) for s in ("semif.v1.results.a", "semif.v1.dead.rules.a")),
    *(("client", "publish", subject) for subject in [*SCORE, "semif.v1.jobs.a.b"]),
    ("client", "subscribe", "_INBOX_client.a.*"),
    *(("monitor", "publish", subject) for subject in ["semif.v1.status", *SRV]),
    *(("monitor", "subscribe", s) for s in ("semif.v1.health.*", "semif.v1.health.me")),
    ("monitor", "subscribe", "_INBOX_monitor.a.*"),
    *(("admin", "publish", f"$JS.API.{what}") for what in MAKING),
    *(("admin", "publish", "$JS.API." + s) for s in ("STREAM.NAMES", "STREAM.INFO.ORDERS")),
    *(("admin", "publish", f"$JS.API.CONSUMER.{s}") for s in ("LIST.ORDERS", "INFO.ORDERS.a")),
    ("admin", "subscribe", "_INBOX_admin.a.*"),
]

REFUSED = [
    # The actor reads no request outside its group, and nothing that is not meant for it.
    *(("actor", "subscribe", subject) for subject in SCORE),
    *(("actor", "subscribe", f"{subject} other") for subject in SCORE),
    *(("actor", "subscribe", s) for s in (">", "*", "semif.v1.>", "semif.v1.*", "semif.>")),
    *(("actor", "subscribe", s) for s in ("> semif", "semif.v1.* semif", "semif.v1.health")),
    *(("actor", "subscribe", s) for s in ("_INBOX.>", "_INBOX_client.>", "_INBOX_monitor.>")),
    *(
        ("actor", "subscribe", s)
        for s in ("$SRV.>", "$SRV.PING.other", "$JS.>", "$SYS.>", "orders")
    ),
    # It writes heartbeats and replies.
    *(("actor", "publish", s) for s in ("orders.create", "semif.v1.score", "semif.v1.status")),
    *(("actor", "publish", s) for s in ("semif.v1.health", "semif.v1.health.a.b", "_INBOX.a.b")),
    *(("actor", "publish", s) for s in ("$JS.API.INFO", "$JS.ACK.a.b.1", "$SRV.PING", "$SYS.x")),
    *(("actor", "publish", s) for s in ("$SRV.INFO.semif.me", "$SRV.PING.semif", "_INBOX.a")),
    *(("actor", "publish", f"$JS.API.{what}") for what in [*MAKING, *HARMING]),
    *(("actor", "publish", f"$JS.API.STREAM.{s}") for s in ("INFO.ORDERS", "LIST", "NAMES.a")),
    *(("actor", "publish", s) for s in ("$JS.ACK.SEMIF_JOBS.other.1", "$JS.ACK.ORDERS.semif.1")),
    *(("actor", "publish", s) for s in ("semif.v1.jobs.a", "semif.v1.results", "_INBOX_admin.a")),
    *(("actor", "subscribe", s) for s in ("semif.v1.jobs.>", "semif.v1.results.>", "$JS.ACK.>")),
    # The client asks, and reads its own replies.
    *(("client", "publish", s) for s in ("semif.v1.health.me", "semif.v1.results.a", "orders")),
    *(("client", "publish", s) for s in ("_INBOX_client.a.b", "_INBOX_monitor.a.b", "semif.v1.x")),
    *(("client", "publish", s) for s in ("semif.v1.status", "$SRV.PING", "$JS.API.INFO")),
    *(("client", "subscribe", subject) for subject in SCORE),
    *(("client", "subscribe", f"{subject} semif") for subject in SCORE),
    *(("client", "subscribe", s) for s in (">", "_INBOX.>", "_INBOX_monitor.>", "*.>")),
    *(("client", "subscribe", s) for s in ("semif.v1.health.*", "$SRV.>", "semif.v1.>")),
    *(("client", "publish", f"$JS.{what}") for what in LOOKING_AND_TAKING),
    *(("client", "publish", s) for s in ("semif.v1.dead.a", "semif.v1.jobs", "$JS.ACK.a")),
    *(("client", "subscribe", s) for s in ("semif.v1.jobs.>", "semif.v1.results.>", "$JS.>")),
    # The monitor watches.
    *(("monitor", "publish", subject) for subject in SCORE),
    *(("monitor", "publish", s) for s in ("semif.v1.health.me", "_INBOX_client.a.b", "orders")),
    *(("monitor", "publish", s) for s in ("$JS.API.INFO", "$SRV.OTHER", "$SYS.REQ.SERVER.PING")),
    *(("monitor", "subscribe", subject) for subject in SCORE),
    *(("monitor", "subscribe", f"{subject} semif") for subject in SCORE),
    *(("monitor", "subscribe", s) for s in (">", "semif.v1.>", "_INBOX_client.>", "_INBOX.>")),
    *(("monitor", "subscribe", s) for s in ("$SRV.>", "$SRV.PING", "semif.v1.status")),
    *(("monitor", "publish", f"$JS.{what}") for what in LOOKING_AND_TAKING),
    # The admin makes the streams of jobs, and has no part in what goes through them.
    *(("admin", "publish", f"$JS.API.{what}") for what in HARMING),
    *(("admin", "publish", s) for s in ("$JS.ACK.SEMIF_JOBS.semif.1", "orders", "$SYS.x")),
    *(("admin", "publish", s) for s in (*SCORE, "semif.v1.jobs.a", "semif.v1.results.a")),
    *(("admin", "publish", s) for s in ("semif.v1.health.me", "_INBOX_admin.a.b", "$SRV.PING")),
    *(("admin", "subscribe", s) for s in (*SCORE, ">", "semif.v1.>", "$JS.>", "_INBOX.>")),
    *(("admin", "subscribe", s) for s in ("semif.v1.jobs.>", "_INBOX_actor.>", "$SRV.>")),
]


async def is_refused(server: EmbeddedServer, user: str, verb: str, subject: str) -> bool:
    """Do it, and tell whether the server says no."""
    name, _, group = subject.partition(" ")
    async with connected(server, user) as (client, errors):
        if verb == "publish":
            await client.publish(name, b"")
        else:
            await client.subscribe(name, queue=group)
        await client.flush()
        await client.flush()  # the first one overtakes; the error comes before this one's PONG
        assert all("permissions violation" in error.lower() for error in errors), errors
        return bool(errors)


@pytest.mark.parametrize(
    ("user", "verb", "subject", "allowed"),
    [(*each, True) for each in ALLOWED] + [(*each, False) for each in REFUSED],
)
async def test_each_user_may_do_what_it_needs_and_nothing_else(
    permitting: EmbeddedServer, user: str, verb: str, subject: str, *, allowed: bool
) -> None:
    """The server's own word on each line of the table, and a line in its log for each refusal."""
    before = len(violations(permitting))

    refused = await is_refused(permitting, user, verb, subject)

    assert refused is not allowed
    assert len(violations(permitting)) - before == int(refused)


@pytest.mark.parametrize("user", USERS)
async def test_no_user_is_let_in_without_its_password(
    permitting: EmbeddedServer, user: str
) -> None:
    """Neither with another one nor with none, and nobody without a name."""
    address = urlparse(permitting.url)
    for given in ({"user": user, "pass": "x"}, {"user": user, "pass": ""}, {"user": user}, {}):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        await reader.readline()  # INFO
        writer.write(b"CONNECT %s\r\nPING\r\n" % json.dumps(given).encode())
        assert await reader.readline() == b"-ERR 'Authorization Violation'\r\n"
        writer.close()
        await writer.wait_closed()


def settings_of(server: EmbeddedServer, folder: Path, **changes: Any) -> Settings:
    """Give the settings of an actor that logs in as ``actor``."""
    password = folder / "password"
    password.write_text(password_of("actor") + "\n", encoding="utf-8")
    return Settings(
        nats_url=server.url,
        nats_user="actor",
        nats_password_file=password,
        nats_inbox_prefix="_INBOX_actor",
        instance="me",
        heartbeat_s=0.1,
        **changes,
    )


async def test_all_that_an_actor_does_is_permitted(
    permitting: EmbeddedServer, tmp_path: Path
) -> None:
    """Start, answers of every kind, discovery, heartbeats, drain: not one permission error."""
    before = violations(permitting)
    shared = {"state": "x", "decisions": [{k: decision()[k] for k in ("question", "options")}]}
    async with (
        connected(permitting, "client") as (client, client_errors),
        connected(permitting, "monitor") as (monitor, monitor_errors),
    ):
        async with actor_in_process(settings_of(permitting, tmp_path), monitor) as beats:
            asked = [("score", decision()), ("score_shared", shared), ("score", {"bad": 1})]
            replies = [
                await client.request(f"semif.v1.{to}", json.dumps(body).encode(), timeout=10)
                for to, body in asked
            ]
            status = await monitor.request("semif.v1.status", timeout=10)
            found = [await monitor.request(subject, timeout=10) for subject in SRV]
            count = len(beats)
            async with asyncio.timeout(10):
                while len(beats) < count + 2:
                    await monitor.flush()
        assert client_errors == monitor_errors == []

    score, several, error = (json.loads(reply.data) for reply in replies)
    assert score["choice"] == "yes"
    assert several["results"][0]["choice"] == "yes"
    assert error["error"]["code"] == "invalid"
    assert json.loads(status.data)["state"] == "ready"
    kinds = [json.loads(message.data)["type"].rsplit(".", 1)[1] for message in found]
    assert kinds == ["ping_response"] * 3 + ["info_response"] * 3 + ["stats_response"] * 3
    assert beats[-1].state == "stopped"
    assert violations(permitting) == before


def settings_for(server: EmbeddedServer, user: str, folder: Path) -> Settings:
    """Give the settings of a command that ``user`` gives."""
    password = folder / user
    password.write_text(password_of(user), encoding="utf-8")
    return Settings(
        nats_url=server.url,
        nats_user=user,
        nats_password_file=password,
        nats_inbox_prefix=f"_INBOX_{user}",
        jobs=True,
    )


async def test_jobs_need_no_more_than_is_permitted(
    permitting: EmbeddedServer, tmp_path: Path
) -> None:
    """The admin makes what is missing; then a job is done and another becomes a dead letter."""
    before = violations(permitting)
    admin = settings_for(permitting, "admin", tmp_path)
    wanted, told = wanted_objects(admin, ()), list[str]()
    settings = settings_of(permitting, tmp_path, jobs=True)
    async with (
        open_client(admin, "test") as admins,
        connected(permitting, "client") as (client, client_errors),
        connected(permitting, "monitor") as (monitor, _),
    ):
        ask = asking_as_client(admins)
        missing = await look(ask, wanted)
        left = await apply(ask, wanted, replicas=1, tell=told.append)
        async with actor_in_process(settings, monitor):
            for payload in (json.dumps(decision()).encode(), b"no JSON"):
                await client.request("semif.v1.jobs.a", payload, timeout=10)  # stored
            counts = dict[str, int]()
            async with asyncio.timeout(10):
                while counts != {"SEMIF_JOBS": 0, "SEMIF_RESULTS": 1, "SEMIF_DEAD": 1}:
                    for stream in STREAMS:
                        info = json.loads(await ask(f"STREAM.INFO.{stream}", b""))
                        counts[stream] = info["state"]["messages"]
        assert client_errors == []

    assert [each.there for each in missing] == [None] * 4
    assert len(told) == 4
    assert [each.what for each in left if each.differences] == []
    assert violations(permitting) == before


OWNER = '{ user: owner, password: "owner-Pa55" }'
EVENTS = {
    "tickets.new": {"title": "An invoice", "body": {"text": "It is wrong."}},
    "orders.shop.placed": {"order": {"id": 7, "items": ["chair"]}},
    "logs.web": "the disk is full",
}


async def test_the_lines_for_rules_are_what_the_example_needs(tmp_path: Path) -> None:
    """Those in comments, taken in: every rule of rules.example.toml works, and nothing is refused.

    The owner of the streams is this test's.
    """
    text = re.sub(r'^ +# (".*")$', r"\1", CONFIG.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for user in USERS:
        text = text.replace(f"${user.upper()}_PASSWORD", f'"{password_of(user)}"')
    text = text.replace("$NATS_STORE", f'"{tmp_path}"').replace("users: [", f"users: [{OWNER}", 1)
    (tmp_path / "nats.conf").write_text(text, encoding="utf-8")
    rules = ROOT / "ops" / "rules.example.toml"
    with embedded_server(tmp_path, config=tmp_path / "nats.conf") as server:
        admin = msgspec.structs.replace(settings_for(server, "admin", tmp_path), rules=rules)
        settings = settings_of(server, tmp_path, jobs=True, rules=rules)
        wanted, told = wanted_objects(admin, load(rules, prefix="semif.v1")), list[str]()
        async with (
            open_client(admin, "test") as admins,
            connected(server, "monitor") as (monitor, _),
            connected(server, "owner") as (owner, errors),
        ):
            await owner.jetstream().add_stream(name="ORDERS", subjects=["orders.>"])
            await owner.jetstream().add_stream(name="DECISIONS", subjects=["decisions.>"])
            ask = asking_as_client(admins)
            left = await apply(ask, wanted, replicas=1, tell=told.append)
            assert [each.what for each in left if each.differences] == []
            published = [
                await owner.subscribe(subject)
                for subject in ("tickets.sorted.*", "decisions.orders.shop.7", "triage.*.logs.web")
            ]
            async with actor_in_process(settings, monitor):
                for subject, event in EVENTS.items():
                    body = event if isinstance(event, str) else json.dumps(event)
                    await owner.publish(subject, body.encode())
                for subscription in published:
                    await subscription.next_msg(timeout=10)
            assert errors == []
        assert violations(server) == []


async def test_our_own_commands_work_with_the_prefix_of_their_user(
    permitting: EmbeddedServer, tmp_path: Path
) -> None:
    """What ``score`` and ``ping`` do, as client and as monitor."""
    before = violations(permitting)
    async with (
        connected(permitting, "monitor") as (monitor, _),
        actor_in_process(settings_of(permitting, tmp_path), monitor),
        open_client(settings_for(permitting, "client", tmp_path), "test") as asking,
        open_client(settings_for(permitting, "monitor", tmp_path), "test") as watching,
    ):
        response = await asking.ask(json.dumps(decision()).encode(), timeout_s=10)
        beat = await watching.next_heartbeat("me", timeout_s=10)

    assert response.error is None
    assert beat.instance == "me"
    assert violations(permitting) == before


async def test_no_request_makes_the_actor_write_elsewhere(
    permitting: EmbeddedServer, tmp_path: Path
) -> None:
    """A reply subject that is no inbox is not even tried: the server has nothing to refuse."""
    before = violations(permitting)
    body = json.dumps(decision()).encode()
    async with (
        connected(permitting, "client") as (client, _),
        connected(permitting, "monitor") as (monitor, _),
        actor_in_process(settings_of(permitting, tmp_path), monitor),
    ):
        for reply_to in ("orders.create", "semif.v1.score", "$JS.API.INFO", "semif.v1.health.me"):
            await client.publish("semif.v1.score", body, reply=reply_to)
        good = await client.request("semif.v1.score", body, timeout=10)
        counters = json.loads((await monitor.request("semif.v1.status", timeout=10)).data)

    assert json.loads(good.data)["choice"] == "yes"
    assert counters["counters"]["unanswerable"] == 4
    assert violations(permitting) == before


VARIANT = "allow_responses: { max: 1, expires: "


async def test_the_variant_with_allow_responses_works_too(tmp_path: Path) -> None:
    """As the file says: replies of any inbox, one for each request, for longer than a deadline."""
    text = CONFIG.read_text(encoding="utf-8").replace("$NATS_STORE", f'"{tmp_path}"')
    changed = text.replace(f"# {VARIANT}", VARIANT)
    head, publish = changed.split("publish: {", 1)
    for user in USERS:
        publish = publish.replace(f'              "_INBOX_{user}.>"\n', "", 1)
    changed = f"{head}publish: {{{publish}"
    for user in USERS:
        changed = changed.replace(f"${user.upper()}_PASSWORD", f'"{password_of(user)}"')
    (tmp_path / "nats.conf").write_text(changed, encoding="utf-8")
    minutes = int(text.split(VARIANT)[1].split('"')[1].removesuffix("m"))
    assert minutes * 60_000 > Settings().timeout_ms_max
    with embedded_server(tmp_path, config=tmp_path / "nats.conf") as server:
        assert await is_refused(server, "actor", "publish", "_INBOX_client.a.b")
        before = violations(server)
        async with (
            connected(server, "client") as (client, _),
            connected(server, "monitor") as (monitor, _),
            actor_in_process(settings_of(server, tmp_path), monitor),
        ):
            body = json.dumps(decision()).encode()
            for _ in range(3):
                reply = await client.request("semif.v1.score", body, timeout=10)
                assert json.loads(reply.data)["choice"] == "yes"
            assert (await monitor.request("semif.v1.status", timeout=10)).data
        assert violations(server) == before


async def test_the_passwords_can_come_from_an_included_file(tmp_path: Path) -> None:
    """The other way that README.md shows; quoted there, digits and marks are text too."""
    odd = {user: f"12345$#{user}" for user in USERS}
    lines = [f'{user.upper()}_PASSWORD: "{odd[user]}"' for user in USERS]
    lines.append(f'NATS_STORE: "{tmp_path}"')
    (tmp_path / "passwords.conf").write_text("\n".join(lines), encoding="utf-8")
    text = "include passwords.conf\n" + CONFIG.read_text(encoding="utf-8")
    (tmp_path / "nats.conf").write_text(text, encoding="utf-8")
    with embedded_server(tmp_path, config=tmp_path / "nats.conf") as server:
        for user in USERS:
            client = await nats.connect(server.url, user=user, password=odd[user])
            await client.close()


def test_no_password_is_written_in_the_configuration() -> None:
    """Each is a variable of its user's name."""
    text = CONFIG.read_text(encoding="utf-8")
    given = [
        line.split("password:")[1].strip() for line in text.splitlines() if "password:" in line
    ]

    assert given == [f"${user.upper()}_PASSWORD" for user in USERS]


async def test_the_prefix_can_be_changed_as_the_readme_says(tmp_path: Path) -> None:
    """Replaced everywhere in the file and in the settings, it all works under the other one."""
    text = CONFIG.read_text(encoding="utf-8").replace("semif.v1.", "acme.decide.")
    text = text.replace("$NATS_STORE", f'"{tmp_path}"')
    for user in USERS:
        text = text.replace(f"${user.upper()}_PASSWORD", f'"{password_of(user)}"')
    (tmp_path / "nats.conf").write_text(text, encoding="utf-8")
    with embedded_server(tmp_path, config=tmp_path / "nats.conf") as server:
        settings = settings_of(server, tmp_path, subject_prefix="acme.decide")
        async with (
            connected(server, "client") as (client, _),
            connected(server, "monitor") as (monitor, _),
            actor_in_process(settings, monitor),
        ):
            body = json.dumps(decision()).encode()
            reply: Msg = await client.request("acme.decide.score", body, timeout=10)
        assert json.loads(reply.data)["choice"] == "yes"
        assert violations(server) == []
