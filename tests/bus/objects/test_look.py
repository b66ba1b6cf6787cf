"""A server's streams and consumers against what is wanted, with a real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from in_process import QuickEngine
from nats.aio.client import Client
from object_samples import RULES, SECOND, everything, make_all, settings_of

from actor.bus.connection import Connection, Refusal
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.bus.objects.look import check
from actor.service import Exit, serve
from actor.settings import Settings


@asynccontextmanager
async def connection_of(settings: Settings) -> AsyncIterator[Connection]:
    """Give an actor's connection."""
    connection = Connection(settings)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


async def refusal_of(settings: Settings) -> str:
    """Give the text of the refusal."""
    async with connection_of(settings) as connection:
        with pytest.raises(Refusal) as refused:
            await check(connection, settings, RULES)
    return str(refused.value)


async def test_objects_as_wanted_are_named(
    storing: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """All is well: what was looked at stands in the proof."""
    await make_all(client)
    settings = settings_of(storing.url, tmp_path)

    async with connection_of(settings) as connection:
        said = await check(connection, settings, RULES)

    assert said == (
        "no stream takes requests; as wanted: stream SEMIF_JOBS, stream SEMIF_RESULTS, "
        "stream SEMIF_DEAD, stream ORDERS, stream OUT, consumer semif of SEMIF_JOBS, "
        "consumer semif-sort of ORDERS"
    )


BY_APPLY = "(semif-actor stream apply)"
LEFT_ALONE = "(change it by hand, it is not the actor's)"

WRONG: list[tuple[dict[str, Any], str]] = [
    # Streams of ours.
    ({"SEMIF_JOBS": None, "SEMIF_JOBS.semif": None}, "stream SEMIF_JOBS is missing, wanted for"),
    (
        {
            "SEMIF_JOBS": None,
            "SEMIF_JOBS.semif": None,
            "ALL": {"subjects": ["semif.v1.jobs.a"], "no_ack": True},
        },
        "stream SEMIF_JOBS is missing, and semif.v1.jobs.> taken by stream ALL",
    ),
    (
        {"SEMIF_JOBS": {"retention": "limits"}},
        "stream SEMIF_JOBS: retention is limits, wanted workqueue (it cannot be changed",
    ),
    ({"SEMIF_RESULTS": {"retention": "interest"}}, "SEMIF_RESULTS: retention is interest, wanted"),
    ({"SEMIF_DEAD": {"storage": "memory"}}, "stream SEMIF_DEAD: storage is memory, wanted file"),
    (
        {"SEMIF_RESULTS": {"subjects": None, "mirror": {"name": "ORDERS"}}},
        "stream SEMIF_RESULTS: mirror is ORDERS, wanted none",
    ),
    ({"SEMIF_DEAD": {"sealed": True}}, "stream SEMIF_DEAD: sealed is true, wanted false"),
    (
        {"SEMIF_RESULTS": {"duplicate_window": 60 * SECOND}},
        f"SEMIF_RESULTS: duplicate_window is 60 s, wanted at least 120 s {BY_APPLY}",
    ),
    (
        # 1,048,576 bytes of a request, and 16,384 of headers.
        {"SEMIF_DEAD": {"max_msg_size": 1_064_959}},
        "SEMIF_DEAD: max_msg_size is 1064959, wanted at least 1064960, or no limit",
    ),
    ({"SEMIF_RESULTS": {"no_ack": True}}, f"no_ack is true, wanted false {BY_APPLY}"),
    (
        {"SEMIF_RESULTS": {"subjects": ["semif.v1.results.a"]}},
        "subjects is semif.v1.results.a, wanted semif.v1.results.> (semif",
    ),
    ({"SEMIF_JOBS": {"max_age": 3600 * SECOND}}, "max_age is 3600 s, wanted no limit"),
    ({"SEMIF_JOBS": {"max_msgs_per_subject": 1}}, "max_msgs_per_subject is 1, wanted no limit"),
    ({"SEMIF_JOBS": {"max_msgs": 1000}}, "discard is old, wanted new: with a limit"),
    ({"SEMIF_JOBS": {"subject_transform": {"src": ">", "dest": "a.>"}}}, "subject_transform is se"),
    # Consumers.
    ({"SEMIF_JOBS.semif": None}, f"semif of SEMIF_JOBS is missing, wanted for jobs {BY_APPLY}"),
    ({"SEMIF_JOBS.semif": {"deliver_subject": "x"}}, "deliver_subject is push to x, wanted none"),
    ({"ORDERS.semif-sort": {"ack_policy": "none"}}, "ack_policy is none, wanted explicit"),
    (
        {"SEMIF_JOBS.semif": {"ack_wait": 31 * SECOND}},
        f"consumer semif of SEMIF_JOBS: ack_wait is 31 s, wanted 30 s {BY_APPLY}",
    ),
    ({"SEMIF_JOBS.semif": {"max_deliver": 10}}, "max_deliver is 10, wanted -1"),
    ({"SEMIF_JOBS.semif": {"max_ack_pending": 255}}, "max_ack_pending is 255, wanted at least 256"),
    ({"ORDERS.semif-sort": {"filter_subject": None}}, "filter_subject is all subjects, wanted ord"),
    ({"ORDERS.semif-sort": {"backoff": [SECOND], "max_deliver": 5}}, "backoff is 1 s, wanted none"),
    ({"ORDERS.semif-sort": {"headers_only": True}}, "headers_only is True, wanted none"),
    ({"ORDERS.semif-sort": {"inactive_threshold": SECOND}}, "inactive_threshold is 1000000000"),
    ({"ORDERS.semif-sort": {"max_batch": 1}}, "max_batch is 1, wanted none"),
    ({"ORDERS.semif-sort": {"replay_policy": "original"}}, "replay_policy is original, wanted"),
    ({"ORDERS.semif-sort": {"pause_until": "2099-01-01T00:00:00Z"}}, "paused is true, wanted f"),
    (
        {"SEMIF_JOBS.semif": None, "SEMIF_JOBS.rival": {"filter_subject": "semif.v1.jobs.a"}},
        "consumer rival of SEMIF_JOBS: filter_subject is semif.v1.jobs.a, wanted none of semif.v1",
    ),
    (
        {"SEMIF_JOBS.semif": None, "SEMIF_JOBS.rival": {}},
        "consumer rival of SEMIF_JOBS: filter_subject is all subjects, wanted none of semif.v1",
    ),
    # What belongs to the user.
    (
        {"ORDERS": None, "ORDERS.semif-sort": None},
        'ORDERS is missing, wanted for rule "sort" (make',
    ),
    (
        {"ORDERS": {"subjects": ["invoices.*"]}},
        f'is invoices.*, wanted some of orders.*, which rule "sort" reads {LEFT_ALONE}',
    ),
    ({"OUT": None}, 'stream OUT is missing, wanted for rule "sort" (make it by hand)'),
    (
        {"OUT": {"subjects": ["out.billing.*"]}},
        f'also out.other.*, where rule "sort" publishes {LEFT_ALONE}',
    ),
    ({"OUT": {"no_ack": True}}, f"stream OUT: no_ack is true, wanted false {LEFT_ALONE}"),
    ({"OUT": {"sealed": True}}, f"stream OUT: sealed is true, wanted false {LEFT_ALONE}"),
    ({"OUT": {"duplicate_window": SECOND}}, "OUT: duplicate_window is 1 s, wanted at least 120 s"),
    # Requests.
    (
        {"LOG": {"subjects": ["semif.v1.score", "semif.*.status"]}},
        "LOG: subjects is semif.v1.score, semif.*.status, wanted nothing of semif.v1.score, semif",
    ),
    ({"LOG": {"subjects": ["semif.*.score_shared"]}}, "wanted nothing of semif.v1.score_shared: c"),
    ({"LOG": {"subjects": ["$SRV.PING"]}}, "wanted nothing of $SRV.>: c"),
]


@pytest.mark.parametrize(("changes", "told"), WRONG, ids=lambda each: str(each)[:60])
async def test_a_difference_is_spelled_out(
    storing: EmbeddedServer,
    client: Client,
    tmp_path: Path,
    changes: dict[str, Any],
    told: str,
) -> None:
    """Object, field, what is there, what is wanted and what to do; nothing is changed."""
    await make_all(client, changes)
    before = await everything(client)

    text = await refusal_of(settings_of(storing.url, tmp_path))

    assert told in text
    assert await everything(client) == before


HARMLESS: list[dict[str, Any]] = [
    {"LOG": {"subjects": ["semif.v1.score"], "no_ack": True}},
    {"LOG": {"subjects": ["semif.v1.health.*"]}},
    {"SEMIF_JOBS": {"max_msgs": 1000, "discard": "new", "duplicate_window": 300 * SECOND}},
    {"SEMIF_RESULTS": {"retention": "workqueue", "max_age": 3600 * SECOND}},
    {"SEMIF_RESULTS": {"subjects": ["semif.*.results.>", "more"], "max_msg_size": 2_000_000}},
    {"SEMIF_JOBS.semif": {"filter_subject": None, "max_ack_pending": -1}},
    {"SEMIF_JOBS.semif": {"filter_subject": None, "filter_subjects": ["semif.v1.jobs.>"]}},
    {"ORDERS.another": {"filter_subject": "orders.a"}},
    {"ORDERS": {"retention": "workqueue"}, "ORDERS.another": {"filter_subject": "orders.a.b"}},
    {"A": {"subjects": ["orders.>"]}, "ORDERS": {"subjects": None, "mirror": {"name": "A"}}},
    {"OUT": {"subjects": ["out.*.*"]}},
]


@pytest.mark.parametrize("changes", HARMLESS, ids=lambda each: str(each)[:60])
async def test_what_the_actor_can_live_with_is_left_to_the_operator(
    storing: EmbeddedServer, client: Client, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Limits, replicas, more subjects, another's consumers."""
    await make_all(client, changes)
    settings = settings_of(storing.url, tmp_path)

    async with connection_of(settings) as connection:
        assert "as wanted" in await check(connection, settings, RULES)


@pytest.mark.usefixtures("client")
async def test_all_differences_are_told_at_once(storing: EmbeddedServer, tmp_path: Path) -> None:
    """Nobody starts an actor five times to find five mistakes."""
    text = await refusal_of(settings_of(storing.url, tmp_path))

    # Three streams of ours, two of the user's, two consumers.
    assert text.count(" is missing, ") == 7


async def test_an_actor_that_is_refused_ends_with_the_difference(
    storing: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """Exit 3, proof "bus"; and no request was taken before."""
    await make_all(client, {"SEMIF_JOBS.semif": {"max_deliver": 5}})
    settings = settings_of(storing.url, tmp_path)
    watching = await client.subscribe("semif.v1.health.me")

    code = await serve(settings, lambda _settings, _ledger: QuickEngine())

    assert code == Exit.PROOF_FAILED
    beat = json.loads((await watching.next_msg(timeout=5)).data)
    while beat["state"] != "failed":
        beat = json.loads((await watching.next_msg(timeout=5)).data)
    assert beat["reason"].startswith("bus: consumer semif of SEMIF_JOBS: max_deliver is 5, wanted")


NO_JETSTREAM = "there is no JetStream here"


async def test_without_jetstream_jobs_are_refused_and_requests_are_not(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """Absent from the server: an error for jobs, a note for the others."""
    settings = settings_of(server.url, tmp_path)
    plain = msgspec.structs.replace(settings, jobs=False, rules=None)

    assert f"JetStream is needed for jobs and rules: {NO_JETSTREAM}" in await refusal_of(settings)
    async with connection_of(plain) as connection:
        assert NO_JETSTREAM in await check(connection, plain, ())


DENIED = """
jetstream: enabled
accounts {
  PLAIN { users: [{ user: plain, password: p }] }
  STORING {
    jetstream: enabled
    users: [
      { user: denied, password: p, permissions: { publish: { deny: "$JS.API.STREAM.NAMES" } } }
    ]
  }
}
"""


async def test_an_account_without_jetstream_or_permission_is_told(tmp_path: Path) -> None:
    """Both at once, without waiting for an answer that never comes."""
    config = tmp_path / "nats.conf"
    config.write_text(DENIED, encoding="utf-8")
    password = tmp_path / "password"
    password.write_text("p", encoding="utf-8")
    with embedded_server(tmp_path, config=config, jetstream=True) as server:
        settings = msgspec.structs.replace(
            settings_of(server.url, tmp_path), nats_password_file=password, nats_user="plain"
        )
        assert NO_JETSTREAM in await refusal_of(settings)

        denied = msgspec.structs.replace(settings, nats_user="denied", jobs=False, rules=None)
        async with connection_of(denied) as connection:
            said = await check(connection, denied, ())

    assert said == (
        "whether a stream takes requests is not known: "
        "the server does not let us ask $JS.API.STREAM.NAMES"
    )
