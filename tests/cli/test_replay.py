"""Replay, run as a person runs it: stored events through a rule, once each, whatever stops it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from rule_samples import rule_text, score_reply
from streams import jetstream_server

from actor.bus.embedded import EmbeddedServer
from schemas.codec import codec_for
from schemas.errors import ErrorReply, Overloaded, body_of

WAIT_S = 20.0
RULE = rule_text(
    source='{ subject = "in.*", stream = "EVENTS" }',
    sinks='[[rules.sinks]]\nsubject = "out.{choice}"\nstream = "KEPT"\n',
)


@pytest.fixture
def js_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with jetstream_server(tmp_path / "js") as running:
        yield running


class Responder:
    """Stands for the actors: answers each question, and keeps what it was asked."""

    def __init__(self) -> None:
        self.states: list[object] = []
        self.priorities: set[str | None] = set()
        self.refuse_first = 0

    async def answer(self, message: Msg) -> None:
        headers = message.headers or {}
        self.states.append(json.loads(message.data)["state"])
        self.priorities.add(headers.get("Semif-Priority"))
        if len(self.states) <= self.refuse_first:
            error = body_of(Overloaded("Full", limit=1, unit="requests", retry_after_ms=20))
            body = codec_for(None).encode(ErrorReply(error=error))
            code = {"Nats-Service-Error-Code": "429", "Nats-Service-Error": "full"}
            await message._client.publish(message.reply, body, headers=code)
            return
        await message.respond(codec_for(None).encode(score_reply()))


@asynccontextmanager
async def stored(
    server: EmbeddedServer, events: int
) -> AsyncIterator[tuple[Client, JetStreamContext, Responder]]:
    """Give a stream of numbered events, one in five of which no rule reads, and a responder."""
    client = await nats.connect(server.url)
    try:
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="EVENTS", subjects=["in.*", "other"]))
        await js.add_stream(StreamConfig(name="KEPT", subjects=["out.>"]))
        for number in range(1, events + 1):
            subject = "other" if number % 5 == 0 else f"in.{number}"
            await js.publish(subject, json.dumps({"n": number}).encode())
        responder = Responder()
        await client.subscribe("semif.v1.score", cb=responder.answer)
        await client.flush()
        yield client, js, responder
    finally:
        await client.close()


async def replay(server: EmbeddedServer, folder: Path, *options: str) -> Process:
    """Start the command."""
    rules = folder / "rules.toml"
    rules.write_text(RULE, encoding="utf-8")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "actor", "replay", str(rules), "--rule", "r"),
        *("--server", server.url, *options),
        env=kept | {"COLUMNS": "200"},
        stdout=PIPE,
        stderr=STDOUT,
    )


async def ended(process: Process) -> tuple[int, str]:
    """Give the exit code and what was printed."""
    async with asyncio.timeout(WAIT_S):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def kept(js: JetStreamContext) -> list[int]:
    """Give the numbers of the events that were published on."""
    state = (await js.stream_info("KEPT")).state
    messages = [await js.get_msg("KEPT", seq + 1) for seq in range(state.last_seq)]
    return [json.loads(message.data or b"")["n"] for message in messages]


async def test_a_stretch_goes_through_its_rule_once(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Those events of the stretch that the rule reads; a second time they are duplicates."""
    async with stored(js_server, 9) as (_, js, responder):
        options = ("--from", "2", "--to", "7", "--rate", "1000")
        first = await ended(await replay(js_server, tmp_path, *options))
        again = await ended(await replay(js_server, tmp_path, *options))

        assert sorted(await kept(js)) == [2, 3, 4, 6, 7]
        assert (await js.streams_info())[0].state.consumer_count == 0
    assert (first[0], again[0]) == (0, 0), (first, again)
    assert "outcomes: published 5" in first[1]
    assert len(responder.states) == 10
    assert responder.priorities == {"background"}


async def test_an_event_that_is_refused_for_now_is_asked_again(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Overloaded actors are left in peace for a while, and the event is not lost for it."""
    async with stored(js_server, 3) as (_, js, responder):
        responder.refuse_first = 4

        code, output = await ended(await replay(js_server, tmp_path, "--rate", "1000"))

        assert (code, sorted(await kept(js))) == (0, [1, 2, 3]), output
    assert len(responder.states) == 7


async def test_bad_events_are_told_and_passed_over(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """They stay in their stream; there is a line for each, without anything of the event."""
    async with stored(js_server, 1) as (_, js, _responder):
        await js.publish("in.bad", b"secret {")

        code, output = await ended(await replay(js_server, tmp_path, "--rate", "1000"))

        assert await kept(js) == [1]
    assert code == 0
    assert "sequence 2: not_json" in output
    assert "secret" not in output


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
async def test_a_replay_that_was_stopped_goes_on_where_it_was(
    how: signal.Signals, js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Every event is published once; those that were done are not even asked again."""
    async with stored(js_server, 50) as (_, js, responder):
        options = ("--rate", "100", "--resume", str(tmp_path / "place.json"))
        process = await replay(js_server, tmp_path, *options)
        async with asyncio.timeout(WAIT_S):
            place = tmp_path / "place.json"
            while not place.exists() or len(await kept(js)) < 5:  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.02)
        process.send_signal(how)
        stopped, said = await ended(process)
        done = len(await kept(js))

        code, output = await ended(await replay(js_server, tmp_path, *options))

        assert sorted(await kept(js)) == [n for n in range(1, 51) if n % 5]
    assert done < 40
    assert code == 0, output
    assert len(responder.states) < 40 + 20
    if how is signal.SIGINT:
        assert stopped == 1
        assert "--resume" in said
        assert "Traceback" not in said


async def test_a_place_of_another_rule_is_refused(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Its numbers are another stream's: going on there would skip events without a word."""
    place = tmp_path / "place.json"
    place.write_text('{"rule":"r","stream":"OTHER","start":1,"next":3,"end":9}', encoding="utf-8")
    async with stored(js_server, 1) as (_, js, _responder):
        code, output = await ended(await replay(js_server, tmp_path, "--resume", str(place)))

        assert await kept(js) == []
    assert code == 1
    assert "stream OTHER" in output


async def test_what_cannot_be_replayed_is_told(js_server: EmbeddedServer, tmp_path: Path) -> None:
    """A start that is none, and a stream that is not there."""
    bad_start = await ended(await replay(js_server, tmp_path, "--from", "yesterday"))
    no_stream = await ended(await replay(js_server, tmp_path))

    assert (bad_start[0], "--from" in bad_start[1]) == (2, True)
    assert (no_stream[0], "EVENTS" in no_stream[1]) == (1, True)


async def test_a_place_that_cannot_be_kept_ends_the_replay(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Whatever is under way: it says so and ends, instead of going round for ever."""
    async with stored(js_server, 60):
        place = tmp_path / "no such folder" / "place"
        options = ("--from", "1", "--rate", "10000", "--resume", str(place))
        code, output = await ended(await replay(js_server, tmp_path, *options))

    assert code == 1
    assert "No such file or directory" in output


async def test_two_replays_with_one_place_both_end(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Each event is published once; the place is whole."""
    async with stored(js_server, 40) as (_, js, _responder):
        place = tmp_path / "place"
        options = ("--from", "1", "--rate", "10000", "--resume", str(place))
        both = [await replay(js_server, tmp_path, *options) for _ in range(2)]
        codes = [(await ended(each))[0] for each in both]
        numbers = await kept(js)

    assert codes == [0, 0]
    assert sorted(numbers) == [n for n in range(1, 41) if n % 5]
    assert json.loads(place.read_bytes())["next"] == 41


async def test_a_place_that_is_done_or_of_an_older_stream_says_so(
    js_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Nothing is passed over in silence: the stretch in the file is not the one that was asked."""
    place = tmp_path / "place"
    options = ("--from", "1", "--rate", "1000", "--resume", str(place))
    async with stored(js_server, 6) as (_, js, _responder):
        assert (await ended(await replay(js_server, tmp_path, *options)))[0] == 0
        code, output = await ended(await replay(js_server, tmp_path, *options))
        await js.purge_stream("EVENTS")
        await js.delete_stream("EVENTS")
        await js.add_stream(StreamConfig(name="EVENTS", subjects=["in.*", "other"]))
        other_code, other = await ended(await replay(js_server, tmp_path, *options))

    assert (code, "sequences 1 to 6 are done" in output) == (0, True)
    assert (other_code, "is of an older stream" in other) == (1, True)
