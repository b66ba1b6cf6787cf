"""Where replies may go: the inboxes of every client, and never a subject that is somebody's."""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from pathlib import Path

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from actor.bus.connection import Connection
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.bus.heartbeat import HeartbeatPublisher
from actor.bus.reply_subjects import REPLY_CHARS_MAX, is_answerable, reply_prefixes
from actor.settings import Settings, SettingsError, load
from schemas.examples import EXAMPLES
from schemas.health import Heartbeat
from schemas.subjects import Subjects

DEFAULT = reply_prefixes(Settings())

# As the clients build them: prefix, a NUID of 22 characters or a UUID, a token for the request.
INBOXES = [
    "_INBOX.DVl2LKMHGnqaDaZTWbUCvd.DVl2LKMHGnqaDaZTWbUCyH",  # Go, and the nats command
    "_INBOX.Zk3xQ0pJ5bXyqTj1cW7aLm",  # Go without its shared subscription
    "_INBOX.5OYXD0UNTVWI7C0BP83GS3.5OYXD0UNTVWI7C0BP83GTJ",  # JavaScript
    "_INBOX.ab3xQ0pJ5bXyqTj1cW7aLm.3hX8kQ",  # Rust
    "_INBOX.q9VzT6mD1sYw4eRb8uKcXn.1",  # C
    "_INBOX.2bd806c97f0e00af1a1fc3328fa763a9",  # Python's new_inbox of old
    "_INBOX_client.DVl2LKMHGnqaDaZTWbUCvd.7",  # one prefix for each user
    "_INBOX_team-7.shop.DVl2LKMHGnqaDaZTWbUCvd.7",
    "_INBOX_müller.1",
    "_R_.fOtgPM.kaJ2b3",  # made by the server: a caller in another account
    "_GR_.0bJYVQ.x1Zw23.fOtgPM._INBOX.DVl2LKMHGnqaDaZTWbUCvd.1",  # and in another cluster
]

REFUSED = [
    *("", ".", " ", "_INBOX", "_INBOX.", "_inbox.a", "INBOX.a", "x_INBOX.a", " _INBOX.a"),
    *("$JS.ACK.JOBS.semif.1.2.3.4.5", "$JS.API.STREAM.DELETE.JOBS", "$SRV.PING", "$SYS.REQ.a"),
    *("$KV.bucket.key", "$O.bucket.C.x", "$MQTT.sub", "orders.create", "replies"),
    *("semif.v1.score", "semif.v1.score_shared", "semif.v1.status", "semif.v1.health.me"),
    *("semif.v1.results.x", "semif.v1.jobs.x"),
    *("_INBOX.>", "_INBOX.*", "_INBOX.a.*", "_INBOX.a.>", "_INBOX.a>", "_INBOX.a*b", "_INBOX_*"),
    *("_INBOX..a", "_INBOX.a.", "_INBOX.a..b", "_INBOX_.", "_INBOX_..a"),
    *("_INBOX.a b", "_INBOX.a\tb", "_INBOX.a\r\nPUB x 0", "_INBOX.a\n", "_INBOX.a\x00"),
    *("_INBOX.a\x0cb", "_INBOX.a\x0b", "_INBOX.a\x7f", "_INBOX.a\x85", "_INBOX.a\xa0b"),
    *("_INBOX.a\u2028", "_INBOX.a\u3000b", "_INBOX.\x1b[2J"),
    "_INBOX." + "a" * (REPLY_CHARS_MAX - 6),
    "_INBOX." + "a." * 10_000 + "a",
]


@pytest.mark.parametrize("reply_to", INBOXES)
def test_inboxes_of_common_clients_are_answered(reply_to: str) -> None:
    """What Go, JavaScript, Rust, C, Python and the server itself use, with the default."""
    assert is_answerable(reply_to, DEFAULT)


@pytest.mark.parametrize("reply_to", REFUSED, ids=ascii)
def test_everything_else_is_refused(reply_to: str) -> None:
    """The server's own subjects, ours, another service's, and what is no subject."""
    assert not is_answerable(reply_to, DEFAULT)


def test_the_longest_reply_subject_is_answered() -> None:
    """The limit itself is allowed."""
    assert is_answerable("_INBOX." + "a" * (REPLY_CHARS_MAX - 7), DEFAULT)


async def test_a_new_inbox_of_nats_py_is_answered() -> None:
    """The client of these tests and of the command."""
    assert is_answerable(Client().new_inbox(), DEFAULT)


WILD = st.text(st.characters(), max_size=40) | st.text("_INBOX.a*> \r\n\x00$é\u2029", max_size=20)


@given(start=st.sampled_from([*DEFAULT, ""]), rest=WILD)
def test_what_is_answered_is_a_subject_to_publish_to(start: str, rest: str) -> None:
    """Under an allowed prefix; no token is empty, has a wildcard, white space or a control."""
    reply_to = start + rest

    answered = is_answerable(reply_to, DEFAULT)

    def allowed(character: str) -> bool:
        odd = character in "*>" or character.isspace()
        return not odd and unicodedata.category(character) != "Cc"

    sane = all(token and all(map(allowed, token)) for token in reply_to.split("."))
    inbox = re.match(r"_INBOX[._]|_R_\.|_GR_\.", reply_to) is not None
    assert answered == (sane and inbox and len(reply_to) <= REPLY_CHARS_MAX)


PREFIXES = st.text("_Isem.v1", min_size=1, max_size=9) | st.sampled_from(["semif", "semif.v1."])


@given(
    subject_prefix=PREFIXES,
    srv_prefix=PREFIXES | st.just("$SRV"),
    chosen=st.lists(PREFIXES, min_size=1, max_size=3),
    rest=st.text("ascore.v1", min_size=1, max_size=9),
)
def test_no_setting_lets_replies_go_to_our_own_subjects(
    subject_prefix: str, srv_prefix: str, chosen: list[str], rest: str
) -> None:
    """Whatever prefixes the actor starts with, nothing under its own is answered."""
    environment = {
        "SEMIF_SUBJECT_PREFIX": subject_prefix,
        "SEMIF_SRV_PREFIX": srv_prefix,
        "SEMIF_REPLY_PREFIXES": ",".join(chosen),
    }
    try:
        settings, _ = load(environment=environment)
    except SettingsError:
        return
    own = Subjects(settings.subject_prefix)
    ours = [own.score, own.score_shared, own.status, own.health("me"), own.health(rest)]
    for subject in [*ours, f"{settings.srv_prefix}.PING", f"{settings.srv_prefix}.INFO.semif"]:
        assert not is_answerable(subject, reply_prefixes(settings))


@pytest.mark.parametrize(
    "chosen",
    [
        *("", ",", "_INBOX.,", " _INBOX.", "_INBOX.>", "_INBOX.*", "$JS.", "$", "a..b", ".", ".a"),
        *("semif", "semif.v1", "semif.v1.", "semif.v1.score", "s", "_INBOX.,semif.v1.health"),
        "_INBOX.\n",
    ],
    ids=ascii,
)
def test_prefixes_that_are_none_or_ours_stop_the_start(chosen: str) -> None:
    """An empty one would allow everything, one with $ the server's own subjects."""
    with pytest.raises(SettingsError, match="reply_prefixes"):
        load(environment={"SEMIF_REPLY_PREFIXES": chosen})


@pytest.mark.parametrize("chosen", ["replies", "semif.v1x", "semif.v2.", "a.b.,_INBOX_team."])
def test_other_prefixes_can_be_chosen(chosen: str) -> None:
    """Then they are the only ones."""
    inbox = chosen.split(",", maxsplit=1)[0].removesuffix(".")
    environment = {"SEMIF_REPLY_PREFIXES": chosen, "SEMIF_NATS_INBOX_PREFIX": inbox}
    settings, _ = load(environment=environment)

    allowed = reply_prefixes(settings)

    assert ",".join(allowed) == chosen
    assert is_answerable(allowed[0] + "x", allowed)
    assert not is_answerable("_INBOX.a.b", allowed)


def test_prefixes_without_our_own_inbox_stop_the_start() -> None:
    """The actor asks at its start who has its name, and has to be able to answer itself."""
    environment = {"SEMIF_REPLY_PREFIXES": "_INBOX_client."}
    with pytest.raises(SettingsError, match="our own inbox"):
        load(environment=environment)

    load(environment=environment | {"SEMIF_NATS_INBOX_PREFIX": "_INBOX_client"})


async def test_status_answers_an_inbox_and_nothing_else(server: EmbeddedServer) -> None:
    """Asked to answer on another subject, the actor is silent, and answers the next one."""
    beat = EXAMPLES["heartbeat"][""]
    assert isinstance(beat, Heartbeat)
    connection = Connection(Settings(nats_url=server.url, instance="unit"))
    await connection.open()
    publisher = HeartbeatPublisher(Settings(instance="unit"), connection, lambda _: beat)
    await publisher.subscribe_status()
    await connection.confirm()
    client = await nats.connect(server.url)
    everything = await client.subscribe(">")

    for reply_to in ("orders.create", "semif.v1.score", "$JS.API.INFO"):
        await client.publish("semif.v1.status", b"", reply=reply_to)
    inbox = client.new_inbox()
    await client.publish("semif.v1.status", b"", reply=inbox)
    seen = [(await everything.next_msg(5)).subject for _ in range(5)]

    assert seen == ["semif.v1.status"] * 4 + [inbox]
    await client.close()
    await connection.close()


TWO_ACCOUNTS = """
accounts {
  SCORERS {
    users: [{user: actor, password: a}]
    exports: [{service: "semif.v1.score"}]
  }
  SHOP {
    users: [{user: shop, password: s}]
    imports: [{service: {account: SCORERS, subject: "semif.v1.score"}}]
  }
}
"""


async def test_a_caller_of_another_account_has_an_answerable_reply_subject(tmp_path: Path) -> None:
    """The server makes a reply subject of its own there, and no client may use such a one."""
    config = tmp_path / "accounts.conf"
    config.write_text(TWO_ACCOUNTS, encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        actor = await nats.connect(server.url, user="actor", password="a")  # noqa: S106
        requests = await actor.subscribe("semif.v1.score")
        await actor.flush()
        await actor.flush()
        refusals: list[str] = []
        refused = asyncio.Event()

        async def on_error(error: Exception) -> None:
            refusals.append(str(error))
            refused.set()

        shop = await nats.connect(server.url, user="shop", password="s", error_cb=on_error)  # noqa: S106
        asking = asyncio.create_task(shop.request("semif.v1.score", b"", timeout=10))
        message = await requests.next_msg(5)
        await actor.publish(message.reply, json.dumps("answer").encode())

        assert message.reply.startswith("_R_.")
        assert is_answerable(message.reply, DEFAULT)
        assert json.loads((await asking).data) == "answer"

        for reply_to in ("_R_.a.b", "_GR_.a.b.c.d"):
            refused.clear()
            await shop.publish("semif.v1.score", b"", reply=reply_to)
            async with asyncio.timeout(5):
                await refused.wait()
        await shop.publish("semif.v1.score", b"the next one", reply=shop.new_inbox())
        assert (await requests.next_msg(5)).data == b"the next one"
        await shop.close()
        await actor.close()
    assert ["reply" in text for text in refusals] == [True, True], refusals
