"""Jobs: requests from a stream, results into another."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from actors import ask, decision
from hypothesis import given
from hypothesis import strategies as st
from in_process import QuickEngine
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg
from streams import (
    SETTINGS,
    GatedEngine,
    jetstream_server,
    make_streams,
    until_entered,
    working,
)

from actor.bus.embedded import embedded_server
from actor.bus.jobs import is_shared
from actor.engine.base import Outcome, Prepared
from actor.service import Exit, serve
from schemas.errors import OutOfMemory, ScoringFailed, SemifError

MSGPACK = "application/msgpack"


def shared(count: int = 2) -> dict[str, Any]:
    """Give a good ``score_shared`` request of ``count`` decisions."""
    question = decision()
    del question["state"]
    return {"state": "s", "decisions": [question | {"id": f"d{n}"} for n in range(count)]}


async def test_each_job_has_one_result(tmp_path: Path) -> None:
    """Both requests, both formats: one result each, under the job's own name, and no job left."""
    with jetstream_server(tmp_path / "js") as server:
        async with working(server) as streams:
            await streams.job("mail.1", headers={"Nats-Msg-Id": "ticket-7"})
            await streams.job("mail.2", shared())
            packed = {"Content-Type": MSGPACK}
            await streams.job("mail.3", msgspec.msgpack.encode(decision()), packed)
            await streams.job("mail.4", msgspec.msgpack.encode(shared()), packed)
            await streams.until_settled()

            found = {result.subject: result for result in await streams.results()}
            assert await streams.dead() == []
            await streams.until_health(lambda jobs: jobs.outcomes == {"done": 4} and not jobs.held)

    assert list(found) == [f"semif.v1.results.mail.{n}" for n in (1, 2, 3, 4)]
    bodies = {
        name[-1]: (
            msgspec.msgpack.decode(each.data)
            if (each.headers or {}).get("Content-Type") == MSGPACK
            else json.loads(each.data or b"")
        )
        for name, each in found.items()
    }
    assert bodies["1"]["id"] == "ticket-7"
    assert bodies["1"]["probabilities"] == [0.5, 0.5]
    assert [each["id"] for each in bodies["2"]["results"]] == ["d0", "d1"]
    assert bodies["3"]["choice"] == "yes"
    assert [each["id"] for each in bodies["4"]["results"]] == ["d0", "d1"]


BAD_JOBS: dict[str, tuple[bytes, dict[str, str], str]] = {
    "empty": (b"", {}, "malformed"),
    "cut": (b'{"state": "x', {}, "malformed"),
    "binary": (b"\xff\x00\r\n\x01", {}, "malformed"),
    "list": (b"[]", {}, "invalid"),
    "nothing": (b"{}", {}, "invalid"),
    "both": (json.dumps(decision() | {"decisions": []}).encode(), {}, "invalid"),
    "null": (b'{"state": "s", "decisions": null}', {}, "invalid"),
    "format": (b"{}", {"Content-Type": "text/plain"}, "unsupported_media_type"),
    "time": (json.dumps(decision()).encode(), {"Semif-Timeout-Ms": "soon"}, "invalid"),
    "deep": (b'{"state": ' + b"[" * 3_000, {}, "malformed"),
    "long": (json.dumps(decision("x" * 5000)).encode(), {}, "too_large"),
    "*": (json.dumps(decision()).encode(), {}, "bad_subject"),
}


async def test_a_hopeless_job_is_a_dead_letter(tmp_path: Path) -> None:
    """Each kind of poison, once: body and headers as they were, the error, and the job is gone."""
    with jetstream_server(tmp_path / "js") as server:
        async with working(server, request_bytes_max=4096) as streams:
            terminated = await streams.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.*.>")
            sequences = {
                name: await streams.job(name, body, {"X-Own": name, "Nats-TTL-Not": "1"} | headers)
                for name, (body, headers, _) in BAD_JOBS.items()
            }
            await streams.until_settled()
            dead = {letter.subject: letter for letter in await streams.dead()}
            reasons = Counter(
                [
                    json.loads((await terminated.next_msg(5)).data)["reason"]
                    for _ in range(len(BAD_JOBS))
                ]
            )
            assert await streams.results() == []

    assert len(dead) == len(BAD_JOBS)
    assert reasons == Counter(code for _, _, code in BAD_JOBS.values())
    for name, (body, own, code) in BAD_JOBS.items():
        letter = dead[f"semif.v1.dead.{'unnamed' if name == '*' else name}"]
        headers = letter.headers or {}
        assert headers["Semif-Dead-Code"] == code, name
        assert (letter.data or b"") == body
        assert own.items() | {("X-Own", name)} <= headers.items()
        assert "Nats-TTL-Not" not in headers
        assert headers["Semif-Dead-Deliveries"] == "1"
        assert headers["Semif-Dead-Stream"] == "SEMIF_JOBS"
        assert headers["Semif-Dead-Sequence"] == str(sequences[name])
        assert headers["Semif-Dead-Subject"] == f"semif.v1.jobs.{name}"
        assert headers["Semif-Dead-Reason"]


async def test_a_job_with_more_headers_than_a_dead_letter_may_have(tmp_path: Path) -> None:
    """A stream takes 64 KiB of them, ours included: the job's own go, and the letter says so."""
    with jetstream_server(tmp_path / "js") as server:
        async with working(server) as streams:
            await streams.job("fat", b"bad", {"X-Fat": "v" * 65_400})
            await streams.until_settled()
            [letter] = await streams.dead()

    headers = letter.headers or {}
    assert (letter.data, headers["Semif-Dead-Code"]) == (b"bad", "malformed")
    assert (headers["Semif-Dead-Truncated"], "X-Fat" in headers) == ("3", False)


RAW_JOBS: tuple[tuple[bytes, bytes | None, tuple[str, str]], ...] = (
    (b"\xff\xfe", None, ("unnamed", "bad_subject")),
    (b"a\x0cb", None, ("unnamed", "bad_subject")),
    (b"\xc2\xa0", None, ("unnamed", "bad_subject")),
    (b"eight", b"1234567\n", ("eight", "malformed")),
    (b"bytes", b"NATS/1.0\r\nA: \xff\xfe!\r\n\r\n", ("bytes", "invalid")),
    (b"status", b"NATS/1.0\r\nStatus: 409\r\n\r\n", ("status", "invalid")),
    (b"inline", b"NATS/1.0 503\r\n\r\n", ("inline", "invalid")),
)
"""What no client library sends, and every server takes."""


async def test_a_job_that_cannot_be_read_is_a_dead_letter(tmp_path: Path) -> None:
    """Bytes for subjects and headers, and words that look like the server's own: all settled."""
    with jetstream_server(tmp_path / "js") as server:
        async with working(server) as streams:
            reader, writer = await asyncio.open_connection(*server.url[7:].split(":"))
            await reader.readline()
            hello = b'CONNECT {"verbose":true,"headers":true,"no_responders":true}\r\n'
            writer.write(hello)
            for name, headers, _ in RAW_JOBS:
                verb, sizes = (b"PUB", b"2") if headers is None else (b"HPUB", sizes_of(headers))
                line = b"%s semif.v1.jobs.%s %s\r\n" % (verb, name, sizes)
                writer.write(line + (headers or b"") + b"{}\r\n")
            for _ in range(1 + len(RAW_JOBS)):
                assert await reader.readline() == b"+OK\r\n"
            writer.close()
            await streams.until_health(lambda jobs: jobs.dead == len(RAW_JOBS))
            await streams.until_settled()
            found = Counter(
                (letter.subject.removeprefix("semif.v1.dead."), code_of(letter))
                for letter in await streams.dead()
            )

    assert found == Counter(expected for _, _, expected in RAW_JOBS)


def sizes_of(headers: bytes) -> bytes:
    """Give the two sizes of a message with a body of two bytes."""
    return b"%d %d" % (len(headers), len(headers) + 2)


def code_of(letter: RawStreamMsg) -> str:
    """Give the code of a dead letter."""
    return str((letter.headers or {}).get("Semif-Dead-Code"))


@pytest.mark.parametrize("error", [OutOfMemory, ScoringFailed])
async def test_a_job_refused_for_now_comes_again(tmp_path: Path, error: type[SemifError]) -> None:
    """It is given back and answered at the next delivery; at the last one it is a dead letter.

    A failure of the engine is no fault of the job's, as far as anybody knows.
    """
    with jetstream_server(tmp_path / "js") as server:
        engine = GatedEngine({"once": [error()], "always": [error() for _ in range(9)]})
        async with working(server, engine, deliveries_max=2) as streams:
            await streams.job("once")
            await streams.job("always")
            await streams.until_settled()
            [result], [letter] = await streams.results(), await streams.dead()
            await streams.until_health(lambda jobs: jobs.retries == 2 and jobs.dead == 1)

    assert engine.scored.count("once") == engine.scored.count("always") == 2
    assert result.subject == "semif.v1.results.once"
    assert letter.headers is not None
    assert letter.headers["Semif-Dead-Code"] == "gave_up"
    assert letter.headers["Semif-Dead-Deliveries"] == "2"
    assert error.code in letter.headers["Semif-Dead-Reason"]


async def test_a_result_too_large_for_the_server_is_a_dead_letter(tmp_path: Path) -> None:
    """The connection lives on, the job's body is kept whole."""
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 16384\n", encoding="utf-8")
    with embedded_server(tmp_path, config=config, jetstream=True) as server:
        async with working(server) as streams:
            await streams.job("many", shared(64))
            await streams.job("few", shared(2))
            await streams.until_settled()
            [letter], [result] = await streams.dead(), await streams.results()
            assert streams.beats[-1].bus.reconnects == 0

    assert letter.headers is not None
    assert letter.headers["Semif-Dead-Code"] == "too_large"
    assert json.loads(letter.data or b"") == shared(64)
    assert result.subject == "semif.v1.results.few"


async def test_a_dead_letter_that_does_not_fit_is_cut(tmp_path: Path) -> None:
    """Of the largest message there can be the end goes, and a header tells how long it was."""
    with jetstream_server(tmp_path / "js") as server:
        async with working(server) as streams:
            limit = streams.client.max_payload
            body = b"x" * (limit - 100)
            await streams.job("huge", body, {"X-Own": "y" * 60})
            await streams.until_settled()
            [letter] = await streams.dead()

    headers = letter.headers or {}
    kept = letter.data or b""
    assert headers["Semif-Dead-Truncated"] == str(len(body))
    assert "X-Own" not in headers
    assert body.startswith(kept)
    assert len(body) - 1000 < len(kept) < len(body)


async def test_jobs_leave_room_for_requests(tmp_path: Path) -> None:
    """However many jobs wait, half of the queue stays free, and a request is answered."""
    with jetstream_server(tmp_path / "js") as server:
        engine = GatedEngine()
        async with working(
            server, engine, queue_jobs_max=16, batch_rows_max=1, ack_wait_s=5.0
        ) as streams:
            engine.gate.clear()
            for number in range(40):
                await streams.job(f"n{number}")
            await until_entered(engine)
            await streams.until_health(lambda jobs: jobs.held >= 8)
            held = streams.beats[-1].queue.jobs
            asking = asyncio.create_task(ask(streams.client, decision("live")))
            engine.gate.set()
            reply = json.loads((await asking).data)
            await streams.until_settled()
            names = {each.subject for each in await streams.results()}

    assert held <= 8
    assert reply["choice"] == "yes"
    assert names == {f"semif.v1.results.n{number}" for number in range(40)}


class SlowEngine(QuickEngine):
    """Takes a while for each job."""

    def __init__(self) -> None:
        super().__init__(batch_s=0.05)

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """Score, slowly."""
        time.sleep(self._batch_s)
        return super().score(batch)


async def test_no_more_is_fetched_than_ends_in_time(tmp_path: Path) -> None:
    """Of a backlog longer than the deadline no job is given up, though it has few deliveries."""
    with jetstream_server(tmp_path / "js") as server:
        async with working(
            server, SlowEngine(), batch_rows_max=1, timeout_ms_default=1500, deliveries_max=3
        ) as streams:
            for number in range(60):
                await streams.job(f"n{number}")
            await streams.until_settled()
            assert len(await streams.results()) == 60
            await streams.until_health(lambda jobs: jobs.outcomes == {"done": 60})


async def test_a_drain_gives_back_what_has_not_started(tmp_path: Path) -> None:
    """What the model works on has its result; the rest is at once there for another actor."""
    with jetstream_server(tmp_path / "js") as server:
        client = await nats.connect(server.url)
        settings = msgspec.structs.replace(SETTINGS, nats_url=server.url, batch_rows_max=1)
        settings = msgspec.structs.replace(settings, ack_wait_s=30.0, dedup_s=120.0)
        streams = await make_streams(client, settings)
        engine = GatedEngine()
        engine.gate.clear()
        serving = asyncio.create_task(serve(settings, lambda _settings, _ledger: engine))
        for number in range(5):
            await streams.job(f"n{number}")
        await until_entered(engine)
        other = await streams.js.pull_subscribe_bind(stream="SEMIF_JOBS", durable="semif")

        async def all_held() -> bool:
            info = await streams.js.consumer_info("SEMIF_JOBS", "semif")
            return bool(info.num_ack_pending == 5)

        await streams.until(all_held)
        signal.raise_signal(signal.SIGTERM)
        taken: list[Msg] = []
        while len(taken) < 4:
            taken += await other.fetch(4, timeout=10)
        engine.gate.set()
        assert await serving == Exit.CLEAN

        for message in taken:
            await message.ack_sync()
        await streams.until_settled()
        [result] = await streams.results()
        assert {message.subject for message in taken} | {
            result.subject.replace("results", "jobs")
        } == {f"semif.v1.jobs.n{number}" for number in range(5)}
        assert {message.metadata.num_delivered for message in taken} == {2}
        await client.close()


@pytest.mark.parametrize(
    ("payload", "content_type", "expected"),
    [
        (json.dumps(decision()).encode(), None, False),
        (json.dumps(shared()).encode(), None, True),
        (b'{"state": {"decisions": [1]}}', None, False),
        (b'{"question": "decisions"}', None, False),
        (msgspec.msgpack.encode(shared()), MSGPACK, True),
        (msgspec.msgpack.encode(decision()), MSGPACK, False),
        (json.dumps(shared()).encode(), MSGPACK, False),
        (b"", None, False),
    ],
)
def test_a_job_is_known_by_its_field(
    payload: bytes, content_type: str | None, expected: bool
) -> None:
    """The field ``decisions`` at the top makes a shared request, in both formats."""
    assert is_shared(payload, content_type) is expected


@given(payload=st.binary(max_size=200), content_type=st.sampled_from([None, MSGPACK, "x", "\xff"]))
def test_any_bytes_are_some_kind(payload: bytes, content_type: str | None) -> None:
    """What cannot be read raises nothing here."""
    assert is_shared(payload, content_type) in {True, False}
