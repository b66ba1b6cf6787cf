"""Everything a caller can send, over a real bus to a real actor: one reply each, always."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from actors import Served, ask, decision, error_of, patched, run_actor, serving
from nats.aio.client import Client

from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.bus.request_reply import caller_of

BYTES_MAX = 65_536
TOKENS_MAX = 512

FAULTS = """
import semif_phase1.direct as direct
real = direct.score
def score(model, tokenizer, row, metadata, max_tokens):
    if row["state"] == "out of memory":
        import torch
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    if row["state"] == "fails":
        raise RuntimeError("a secret: /etc/passwd")
    return real(model, tokenizer, row, metadata, max_tokens)
direct.score = score
"""


@pytest.fixture(scope="module")
def served(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Give an actor with limits that are easy to reach, and two states that break the scorer."""
    folder = tmp_path_factory.mktemp("served")
    settings = {"SEMIF_REQUEST_BYTES_MAX": str(BYTES_MAX), **patched(folder / "patch", FAULTS)}
    with serving(tiny_llama, folder, settings=settings) as running:
        yield running


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Client]:
    """Give a connection to the server of ``served``."""
    connection = await nats.connect(served.url)
    yield connection
    await connection.close()


async def still_answers(client: Client) -> None:
    """Check that the next good request is answered."""
    reply = json.loads((await ask(client, decision())).data)
    assert reply["choice"] in {"yes", "no"}


def options(count: int) -> list[dict[str, str]]:
    """Give distinct options."""
    return [{"id": f"o{n}", "description": f"Option number {n}"} for n in range(count)]


BAD_BODIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "malformed"),
    "random bytes": (bytes(range(256)) * 4, "malformed"),
    "opening brackets": (b"[" * 60_000, "invalid"),  # not an object: read no further
    "brackets in a state": (b'{"state":' + b"[" * 60_000, "malformed"),
    "a 5,000-digit integer": (b'{"state":[' + b"7" * 5000 + b"]}", "malformed"),
    "NaN": (b'{"state":[NaN]}', "malformed"),
    "Infinity": (b'{"state":[Infinity]}', "malformed"),
    "a number out of range": (b'{"state":[1e400]}', "malformed"),
    "a lone surrogate": (b'{"state":"\\ud800"}', "malformed"),
    "UTF-16": ('{"state":"a"}'.encode("utf-16"), "malformed"),
    "too deep": (json.dumps(decision(json.loads("[" * 90 + "]" * 90))).encode(), "malformed"),
    "an array": (b"[]", "invalid"),
    "no fields": (b"{}", "invalid"),
    "an unknown field": (json.dumps(decision() | {"stat": 1}).encode(), "invalid"),
    "too many bytes": (json.dumps(decision("x" * BYTES_MAX)).encode(), "too_large"),
    "too many tokens": (json.dumps(decision("word " * TOKENS_MAX)).encode(), "too_large"),
}

BAD_REQUESTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "17 options": (decision(options=options(17)), "invalid", "options"),
    "one option": (decision(options=options(1)), "invalid", "options"),
    "no options": (decision(options=[]), "invalid", "options"),
    "equal option ids": (
        decision(options=[{"id": "a", "description": "x"}, {"id": "a", "description": "y"}]),
        "invalid",
        "options[1].id",
    ),
    "equal descriptions": (
        decision(options=[{"id": "a", "description": "x"}, {"id": "b", "description": "x"}]),
        "invalid",
        "options[1].description",
    ),
    "a blank description": (
        decision(options=[*options(1), {"id": "b", "description": " "}]),
        "invalid",
        "options[1].description",
    ),
    "empty state": (decision(""), "invalid", "state"),
    "empty object": (decision({}), "invalid", "state"),
    "null state": (decision(None), "invalid", "state"),
    "state of 0": (decision(0), "invalid", "state"),
    "state of false": (decision(state=False), "invalid", "state"),
    "an empty question": (decision(question=""), "invalid", "question"),
    "control text in the state": (decision("a <|im_end|> b"), "control_text", "state"),
    "control text in an option": (
        decision(options=[*options(1), {"id": "b", "description": "<|im_start|>"}]),
        "control_text",
        "options[1].description",
    ),
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_bad_bodies_get_their_error_and_the_next_request_its_answer(
    client: Client, name: str
) -> None:
    """A body that cannot be read is refused by its code; the actor goes on."""
    body, code = BAD_BODIES[name]

    error = error_of(await ask(client, body))
    shared_error = error_of(await ask(client, body, shared=True))

    assert error["code"] == code
    assert shared_error["status"] in {400, 413, 422}
    await still_answers(client)


@pytest.mark.parametrize("name", BAD_REQUESTS)
async def test_bad_requests_name_the_field_at_fault(client: Client, name: str) -> None:
    """A request that cannot be asked is refused with its field; the actor goes on."""
    request, code, field = BAD_REQUESTS[name]

    error = error_of(await ask(client, request))

    assert (error["code"], error["field"]) == (code, field)
    assert not error["retryable"]
    await still_answers(client)


async def test_100_000_brackets_are_refused(client: Client) -> None:
    """Nesting that would overflow a recursive parser is refused (over the byte limit here)."""
    error = error_of(await ask(client, b"[" * 100_000))

    assert error["code"] == "too_large"
    await still_answers(client)


@pytest.mark.parametrize("content_type", ["text/plain", "application/json; charset=latin-1"])
async def test_other_media_types_are_refused(client: Client, content_type: str) -> None:
    """A format that is not served gets 415."""
    reply = await ask(client, decision(), headers={"content-type": content_type})

    assert error_of(reply)["code"] == "unsupported_media_type"
    await still_answers(client)


async def test_an_expired_deadline_is_answered_504(client: Client) -> None:
    """A deadline of one millisecond passes before the model can answer."""
    reply = await ask(client, decision(), headers={"semif-timeout-ms": "1"})

    assert error_of(reply)["code"] == "deadline_exceeded"
    assert error_of(reply)["retryable"]
    await still_answers(client)


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1e3", "600001", "9" * 5000])
async def test_a_deadline_that_is_no_number_is_refused(client: Client, value: str) -> None:
    """A header that cannot be understood is never ignored."""
    reply = await ask(client, decision(), headers={"Semif-Timeout-Ms": value})

    assert error_of(reply)["field"] == "Semif-Timeout-Ms"


@pytest.mark.parametrize(
    ("state", "code"), [("out of memory", "out_of_memory"), ("fails", "scoring_failed")]
)
async def test_a_scorer_that_fails_costs_one_request(client: Client, state: str, code: str) -> None:
    """OOM and every other failure of the scorer have their own code, and tell no secrets."""
    reply = await ask(client, decision(state))

    assert error_of(reply)["code"] == code
    assert b"secret" not in reply.data
    assert b"passwd" not in reply.data
    await still_answers(client)


async def test_messagepack_is_answered_in_messagepack(client: Client) -> None:
    """A MessagePack request gets a MessagePack reply with the same answer as JSON."""
    headers = {"Content-Type": "application/msgpack"}

    packed = await ask(client, msgspec.msgpack.encode(decision()), headers=headers)
    plain = json.loads((await ask(client, decision())).data)

    assert packed.headers == {"Content-Type": "application/msgpack"}
    assert msgspec.msgpack.decode(packed.data)["option_logits"] == plain["option_logits"]


async def test_messagepack_errors_come_in_messagepack(client: Client) -> None:
    """An error is encoded as its request was."""
    reply = await ask(client, b"\xc1", headers={"Content-Type": "application/msgpack"})

    assert msgspec.msgpack.decode(reply.data)["error"]["code"] == "malformed"


async def test_one_bad_decision_costs_its_neighbours_nothing(client: Client) -> None:
    """score_shared gives one result or one error for each decision, in order."""
    good = {"question": "Is it good?", "options": options(2)}
    request = {
        "state": "A sunny day.",
        "decisions": [
            good | {"id": "first"},
            good | {"id": "bad", "options": options(17)},
            good | {"id": "commands", "question": "<|im_end|>"},
            good | {"id": "long", "question": "word " * TOKENS_MAX},
            good,
        ],
    }

    results = json.loads((await ask(client, request, shared=True)).data)["results"]

    assert [(r["id"], r["outcome"]) for r in results] == [
        ("first", "scored"),
        ("bad", "error"),
        ("commands", "error"),
        ("long", "error"),
        ("decisions[4]", "scored"),
    ]
    assert results[1]["error"]["field"] == "decisions[1].options"
    assert results[2]["error"]["code"] == "control_text"
    assert results[2]["error"]["field"] == "decisions[2].question"
    assert results[3]["error"]["code"] == "too_large"


async def test_ids_default_to_nats_msg_id(client: Client) -> None:
    """A decision without an id is named by the message's Nats-Msg-Id."""
    reply = json.loads((await ask(client, decision(), headers={"Nats-Msg-Id": "order-7"})).data)

    assert reply["id"] == "order-7"


async def test_replies_echo_no_header_of_the_caller(client: Client) -> None:
    """What a caller put into headers stays with the actor."""
    reply = await ask(client, decision(), headers={"Authorization": "secret", "X": "1"})

    assert not reply.headers


async def test_a_request_without_reply_subject_is_counted_and_dropped(
    client: Client, served: Served
) -> None:
    """Nothing can be answered, nothing breaks, and the heartbeat says so."""
    before = json.loads((await client.request("semif.v1.status", timeout=10)).data)

    await client.publish("semif.v1.score", json.dumps(decision()).encode())
    await still_answers(client)

    after = json.loads((await client.request("semif.v1.status", timeout=10)).data)
    counted = after["counters"]["unanswerable"] - before["counters"]["unanswerable"]
    assert counted == 1
    assert served.process.poll() is None


async def test_every_request_received_is_accounted_for(client: Client) -> None:
    """Received is answered plus refused plus unanswerable once nothing is in flight."""
    for body in (b"", json.dumps(decision()).encode(), b"{}"):
        await ask(client, body)

    counters = json.loads((await client.request("semif.v1.status", timeout=10)).data)["counters"]

    refused = sum(counters["refused"].values())
    total = counters["answered"] + refused + counters["unanswerable"]
    assert counters["received"] == total


@pytest.mark.parametrize("callers", [1, 200])
async def test_a_full_queue_refuses_at_once_and_everyone_gets_one_reply(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path, callers: int
) -> None:
    """200 requests against a queue of 64, of one caller or of 200: one reply for each.

    The callers go by their reply subjects, each one's replies under its own.
    """
    settings = {"SEMIF_QUEUE_JOBS_MAX": "64", "SEMIF_BATCH_ROWS_MAX": "8"}
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")
        client = actor.client
        inbox = client.new_inbox()
        replies: list[Any] = []
        complete = asyncio.Event()

        async def collect(message: Any) -> None:
            replies.append(message)
            if len(replies) >= 200:
                complete.set()

        await client.subscribe(f"{inbox}.*.*", cb=collect)
        body = json.dumps(decision()).encode()
        asked = [f"{inbox}.{n % callers}.{n}" for n in range(200)]
        for reply_to in asked:
            await client.publish("semif.v1.score", body, reply=reply_to)
        async with asyncio.timeout(60):
            await complete.wait()
        status = json.loads((await client.request("semif.v1.status", timeout=10)).data)

    assert sorted(message.subject for message in replies) == sorted(asked)
    codes = Counter(error_of(m)["code"] if m.headers else "answered" for m in replies)
    assert codes.keys() == {"answered", "overloaded"}
    # The last eighth of the places is not for a caller who holds others.
    assert codes["answered"] >= (56 if callers == 1 else 64)
    assert all(error_of(m)["retry_after_ms"] >= 1 for m in replies if m.headers)
    assert status["counters"]["answered"] == codes["answered"]
    assert status["counters"]["refused"] == {"overloaded": codes["overloaded"]}
    assert (status["queue"]["jobs"], status["queue"]["tokens"]) == (0, 0)


async def test_a_queue_full_by_bytes_refuses(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """The limit in bytes holds by itself."""
    settings = {"SEMIF_QUEUE_BYTES_MAX": "1000"}
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")
        # 400 bytes of white space each: many bytes, few tokens
        body = json.dumps(decision()).encode() + b" " * 400
        replies = await asyncio.gather(*(ask(actor.client, body) for _ in range(40)))

    codes = Counter(error_of(m)["code"] if m.headers else "answered" for m in replies)
    assert codes.keys() == {"answered", "overloaded"}


async def test_a_queue_full_by_tokens_refuses(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """The limit in tokens holds by itself, and a request over it is answered when alone."""
    settings = {"SEMIF_QUEUE_TOKENS_MAX": "100"}
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")
        body = json.dumps(decision("word " * 100)).encode()
        alone = await ask(actor.client, body)
        replies = await asyncio.gather(*(ask(actor.client, body) for _ in range(40)))

    assert not alone.headers
    errors = [error_of(message) for message in replies if message.headers]
    assert 0 < len(errors) < 40
    assert {error["message"] for error in errors} == {
        "The queue is full by tokens, the limit is 100 tokens."
    }


async def test_a_nats_connection_is_one_caller(server: EmbeddedServer) -> None:
    """All requests of a client come from one caller, those of another from another."""
    clients = [await nats.connect(server.url) for _ in range(3)]
    callers: list[list[str]] = [[], []]

    async def answer(message: Any) -> None:
        callers[int(message.data)].append(caller_of(message.reply))
        await message.respond(b"")

    await clients[2].subscribe("asked", cb=answer)
    await clients[2].flush()
    for number in (0, 1):
        asked = (clients[number].request("asked", b"%d" % number, timeout=10) for _ in range(3))
        await asyncio.gather(*asked)
    for client in clients:
        await client.close()

    one, other = callers
    assert (len(one), len(set(one)), len(other), len(set(other))) == (3, 1, 3, 1)
    assert set(one) != set(other)


@pytest.mark.parametrize(
    ("reply_to", "caller"),
    [
        ("_INBOX.pGVb3Cw.17", "_INBOX.pGVb3Cw"),
        ("_INBOX_team.a.b.c", "_INBOX_team.a.b"),
        ("_INBOX.pGVb3Cw", "_INBOX"),
        ("replies", "replies"),
        (".x", ".x"),
    ],
)
def test_a_caller_is_the_reply_subject_less_its_last_token(reply_to: str, caller: str) -> None:
    """A subject without a dot is a caller by itself; no caller is without a name."""
    assert caller_of(reply_to) == caller


async def test_a_reply_over_max_payload_becomes_an_error_reply(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """A reply that the server would not carry is refused by us; the connection lives."""
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 8192", encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        async with run_actor(server, tiny_llama, tmp_path) as actor:
            await actor.until("ready")
            client = actor.client
            many = [{"question": "So?", "options": options(2)} for _ in range(40)]
            error = error_of(await ask(client, {"state": "x", "decisions": many}, shared=True))
            fits = await ask(client, {"state": "x", "decisions": many[:4]}, shared=True)
            await still_answers(client)
            status = json.loads((await client.request("semif.v1.status", timeout=10)).data)

    assert error["code"] == "too_large"
    assert len(json.loads(fits.data)["results"]) == 4
    assert status["bus"]["reconnects"] == 0
