"""What callers send and what goes wrong inside stays there: no reply, heartbeat or log tells."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import nats
import pytest
import structlog
from actors import decision
from in_process import QuickEngine, actor_in_process
from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.bus.embedded import EmbeddedServer
from actor.engine.base import Outcome, Prepared, Work
from actor.service import Exit, serve
from actor.settings import Settings
from actor.telemetry import logs
from schemas.errors import ScoringFailed

SECRET = "s3cret-of-the-engine"  # noqa: S105 - a marker to look for
PAYLOAD = "p4yload-of-the-caller"
HEADER = "h34der-of-the-caller"
MARKERS = (SECRET, PAYLOAD, HEADER)

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
"""The example of the W3C recommendation."""
HEADERS = {
    "Authorization": HEADER,
    "X-Own": HEADER,
    "traceparent": f"00-{HEADER}",
    "tracestate": HEADER,
    "Nats-Expected-Stream": HEADER,
}


class LeakyEngine(QuickEngine):
    """An engine whose errors quote the request, a path and a secret of their own."""

    def prepare(self, work: Work) -> Prepared:
        """Fail with another kind of error for each of these states."""
        local = f"{SECRET} in /etc/passwd over {work.state!r}"
        state = str(work.state)
        if "chain" in state:
            try:
                json.loads(local)
            except ValueError as error:
                raise KeyError(local) from error
        if "group" in state:
            raise ExceptionGroup(local, [ValueError(local)])
        if "own" in state:
            raise ScoringFailed
        if "bug" in state:
            raise RuntimeError(local)
        return super().prepare(work)

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """Fail altogether for this state."""
        if any("dies" in str(each.work.state) for each in batch):
            raise ValueError(f"{SECRET} {batch[0].work.state!r}")
        return super().score(batch)


@pytest.fixture(params=["json", "console"])
def logged(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[io.StringIO]:
    """Write the log as the program does, with every line that there is."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # pytest's: set_up would close them
    logs.set_up(Settings(log_level="debug", log_format=request.param))
    logging.captureWarnings(capture=False)
    yield written
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def options(*ids: str) -> list[dict[str, str]]:
    """Give options whose descriptions are the caller's."""
    return [{"id": name, "description": f"{PAYLOAD} {name}"} for name in ids]


def requests() -> dict[str, tuple[dict[str, str], bytes]]:
    """Give requests with the caller's marker in all that is not meant to come back."""
    good = decision(PAYLOAD, question=f"{PAYLOAD}?", options=options("a", "b"))
    json_bodies: dict[str, Any] = {
        "good": good,
        "a bug": good | {"state": f"bug {PAYLOAD}"},
        "a chain of errors": good | {"state": {"chain": PAYLOAD}},
        "a group of errors": good | {"state": ["group", PAYLOAD]},
        "an error of ours": good | {"state": f"own {PAYLOAD}"},
        "equal descriptions": good | {"options": [*options("a"), *options("a")]},
        "17 options": good | {"options": options(*map(str, range(17)))},
        "a wrong type": good | {"options": PAYLOAD},
        "a wrong type inside": good | {"options": [PAYLOAD, {"id": [PAYLOAD]}]},
        "a blank question": good | {"question": " "},
        "too many bytes": good | {"state": PAYLOAD * 5000},
        "not a decision": {"decisions": PAYLOAD},
    }
    bodies = {name: (HEADERS, json.dumps(body).encode()) for name, body in json_bodies.items()}
    text = json.dumps(good).encode()
    return bodies | {
        "cut short": (HEADERS, text[:-9]),
        "text": (HEADERS, PAYLOAD.encode()),
        "not UTF-8": (HEADERS, PAYLOAD.encode() + b"\xff"),
        "a number out of range": (HEADERS, text.replace(b"{", b'{"state":1e999,', 1)),
        "a media type": (HEADERS | {"Content-Type": HEADER}, text),
        "a charset": (HEADERS | {"Content-Type": f"application/json; charset={HEADER}"}, text),
        "a deadline": (HEADERS | {"Semif-Timeout-Ms": HEADER}, text),
        "MessagePack": (HEADERS | {"Content-Type": "application/msgpack"}, text),
        "a trace": (HEADERS | {"traceparent": TRACEPARENT}, bodies["a bug"][1]),
    }


def shared(body: bytes) -> bytes:
    """Give the same as a request with several decisions, where it can be read."""
    try:
        row = json.loads(body)
        each = {key: row[key] for key in ("question", "options")}
        return json.dumps({"state": row["state"], "decisions": [each, each]}).encode()
    except (ValueError, KeyError):
        return body


class Overheard:
    """Everything that is published, but for the requests themselves."""

    def __init__(self) -> None:
        self.messages: list[Msg] = []

    async def hear(self, message: Msg) -> None:
        if message.subject not in {"semif.v1.score", "semif.v1.score_shared"}:
            self.messages.append(message)

    def text(self) -> str:
        return "\n".join(f"{m.subject} {m.headers} {m.data!r}" for m in self.messages)


async def eavesdrop(server: EmbeddedServer) -> tuple[Client, Overheard]:
    """Give a client that hears everything.

    But for ``$JS.>``: there a listener counts as a JetStream that does not answer, for 5 s.
    """
    client = await nats.connect(server.url)
    overheard = Overheard()
    for subject in ("semif.>", "$SRV.>", "_INBOX.>"):
        await client.subscribe(subject, cb=overheard.hear)
    return client, overheard


def check_nothing_told(text: str) -> None:
    """None of the markers, no file of this machine, no traceback as Python prints it."""
    for marker in (*MARKERS, "/etc/passwd", __file__, "site-packages", "Traceback (most"):
        assert marker not in text


async def test_no_marker_comes_out_again(server: EmbeddedServer, logged: io.StringIO) -> None:
    """Good, bad and unlucky requests: replies, heartbeats, STATS and the log tell nothing."""
    settings = Settings(nats_url=server.url, instance="t", request_bytes_max=65_536)
    client, overheard = await eavesdrop(server)
    codes: dict[str, str] = {}
    async with actor_in_process(settings, client, LeakyEngine()):
        for name, (headers, body) in requests().items():
            for subject, payload in (("score", body), ("score_shared", shared(body))):
                reply = await client.request(
                    f"semif.v1.{subject}", payload, timeout=10, headers=headers
                )
                own = {"Nats-Service-Error", "Nats-Service-Error-Code", "Content-Type"}
                assert (reply.headers or {}).keys() <= own
                if subject == "score" and name != "MessagePack":
                    codes[name] = json.loads(reply.data).get("error", {}).get("code", "answered")
        for subject in ("semif.v1.status", "$SRV.PING.semif", "$SRV.INFO", "$SRV.STATS.semif.t"):
            await client.request(subject, PAYLOAD.encode(), timeout=10, headers=HEADERS)
    await client.close()
    log = logged.getvalue()

    expected = {"a bug": "scoring_failed", "a chain of errors": "scoring_failed"}
    assert expected.items() <= codes.items()
    assert codes["good"] == "answered"
    requested = [m for m in overheard.messages if PAYLOAD.encode() in m.data]
    assert {m.subject.split(".")[0] for m in requested} <= {"semif", "$SRV"}  # our own, above
    overheard.messages = [m for m in overheard.messages if m not in requested]
    assert sum('"state":"ready"' in str(m.data) for m in overheard.messages) >= 1
    check_nothing_told(overheard.text())
    check_nothing_told(log)
    assert "KeyError" in log  # the type and the place are what is left to find a bug by
    assert "tests.bus.test_no_leaks" in log or "test_no_leaks:" in log
    assert TRACEPARENT in log


async def test_an_engine_that_dies_tells_nothing(
    server: EmbeddedServer, logged: io.StringIO
) -> None:
    """The last heartbeat and the log name the type of the error; its text stays inside."""
    settings = Settings(nats_url=server.url, instance="t")
    client, overheard = await eavesdrop(server)
    ready = await client.subscribe("semif.v1.health.t")
    running = asyncio.create_task(serve(settings, lambda _settings, _ledger: LeakyEngine()))
    async with asyncio.timeout(10):
        while json.loads((await ready.next_msg(10)).data)["state"] != "ready":
            pass

        body = json.dumps(decision(f"dies {PAYLOAD}")).encode()
        reply = await client.request("semif.v1.score", body, timeout=10, headers=HEADERS)

        assert await running == Exit.ENGINE_FAILED
    await client.flush()
    await client.close()
    log = logged.getvalue()

    assert json.loads(reply.data)["error"]["code"] == "scoring_failed"
    assert json.loads(overheard.messages[-1].data)["state"] == "failed"
    check_nothing_told(overheard.text())
    check_nothing_told(log)
    assert "ValueError" in log
