"""What servers do to a connection: refuse it, close it for good, take rights back, not read."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from pathlib import Path
from urllib.parse import urlparse

import nats
import pytest
from connections import TIMEOUT_S, connection_to, lost, until
from fake_server import fake_server

from actor.bus.connection import BusLost, Connection
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.service import Exit, serve
from actor.settings import Settings
from actor.wire_size import wire_bytes


def with_password(folder: Path, text: str, *, max_payload: str = "1MB") -> tuple[Path, Path]:
    """Write a server's configuration with one user ``u``, and the file of its password."""
    config, password = folder / "nats.conf", folder / "password"
    rights = f"permissions: {{ {text} }}" if text else ""
    config.write_text(
        f"max_payload: {max_payload}\n"
        f"authorization {{ users = [ {{ user: u, password: p, {rights} }} ] }}",
        encoding="utf-8",
    )
    password.write_text("p", encoding="utf-8")
    return config, password


@pytest.mark.parametrize(
    "refusal",
    ["Authorization Violation", "User Authentication Expired", "Account Authentication Expired"],
)
async def test_refused_credentials_are_not_tried_again(refusal: str) -> None:
    """An hour is left to find a server, and none of it is used: waiting mends no password."""
    async with fake_server(refuses=refusal) as fake, asyncio.timeout(TIMEOUT_S):
        with pytest.raises(BusLost, match=f"refuses the credentials: '?{refusal}"):
            async with connection_to(fake.url, bus_lost_s=3600):
                pass
        assert fake.connects == 1


async def test_the_process_ends_at_once_when_its_credentials_are_refused(tmp_path: Path) -> None:
    """Exit 6, long before SEMIF_BUS_LOST_S."""
    config, password = with_password(tmp_path, "")
    password.write_text("wrong", encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        settings = Settings(
            nats_url=server.url, nats_user="u", nats_password_file=password, bus_lost_s=3600
        )
        async with asyncio.timeout(TIMEOUT_S):
            assert await serve(settings) == Exit.BUS_LOST


async def test_credentials_refused_at_two_reconnects_are_a_loss() -> None:
    """A user that was deleted: the first refusal may be a server that is still being set up."""
    async with fake_server() as fake, connection_to(fake.url, bus_lost_s=3) as bus:
        fake.refuses = "Authorization Violation"
        fake.writer.close()  # type: ignore[union-attr]

        assert "refuses the credentials" in await lost(bus)
        assert fake.connects == 3


@pytest.mark.parametrize(
    "error",
    [
        "User Authentication Expired",
        "User Authentication Revoked",
        "Account Authentication Expired",
        "maximum connections exceeded",
        "Maximum Payload Violation",
    ],
)
async def test_an_error_that_closes_for_good_is_a_loss(error: str) -> None:
    """nats-py does not reconnect after these, and says so to nobody but closed_cb."""
    async with fake_server() as fake, connection_to(fake.url) as bus:
        fake.error(error)

        reason = await lost(bus)

    assert reason.startswith("the server closed the connection for good: ")
    assert error.lower() in reason


async def test_a_server_that_is_full_is_waited_for(tmp_path: Path) -> None:
    """``maximum connections exceeded`` at the connect passes when somebody leaves."""
    config = tmp_path / "nats.conf"
    config.write_text("max_connections: 1", encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        other = await nats.connect(server.url)
        bus = Connection(Settings(nats_url=server.url, instance="unit", bus_lost_s=6))
        opening = asyncio.create_task(bus.open())
        async with asyncio.timeout(TIMEOUT_S):
            while bus._client.last_error is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not opening.done()
        await other.close()
        async with asyncio.timeout(TIMEOUT_S):
            await opening
        await bus.close()


async def test_a_subscription_that_a_reload_takes_back_is_a_loss(tmp_path: Path) -> None:
    """Deaf on one subject and well by its heartbeats would be worse than an end."""
    config, password = with_password(tmp_path, "")
    with embedded_server(tmp_path, config=config) as server:
        async with connection_to(server.url, nats_user="u", nats_password_file=password) as bus:
            await bus.subscribe("work", lambda _message: None, queue="group")
            await bus.confirm()
            with_password(tmp_path, 'subscribe: { deny: "work" }')
            server.process.send_signal(signal.SIGHUP)

            reason = await lost(bus)

    assert reason.startswith("the server took back a subscription: ")
    assert '"work"' in reason


async def test_a_message_that_may_not_be_published_is_counted(tmp_path: Path) -> None:
    """A caller names the reply subject: it must not end the actor."""
    config, password = with_password(tmp_path, 'publish: { deny: "secret" }')
    with embedded_server(tmp_path, config=config) as server:
        async with connection_to(server.url, nats_user="u", nats_password_file=password) as bus:
            await bus.confirm()
            for _ in range(3):
                await bus.publish("secret", b"")
            await bus.barrier()
            await bus.confirm()

            assert bus.incidents.publishes_refused == 3
            assert not bus.lost.is_set()


@pytest.mark.parametrize(
    ("headers", "size"),
    [
        (None, 5),
        ({}, 5 + 12),
        ({"A": "b"}, 5 + 12 + 6),
        ({" Name ": " \u00e4 ", "": "not sent"}, 5 + 12 + len("Name: ..\r\n")),
    ],
)
def test_the_size_is_that_on_the_wire(headers: dict[str, str] | None, size: int) -> None:
    """``NATS/1.0`` and its line end, each header with its own, an empty line, the payload."""
    assert wire_bytes(b"12345", headers) == size


@pytest.mark.parametrize("headers", [None, {"Nats-Service-Error-Code": "500"}])
async def test_a_message_of_the_greatest_size_is_carried_and_one_byte_more_is_not(
    tmp_path: Path, headers: dict[str, str] | None
) -> None:
    """nats-py would send it, and the server close the connection for good."""
    config, password = with_password(tmp_path, "", max_payload="1KB")
    with embedded_server(tmp_path, config=config) as server:
        async with connection_to(server.url, nats_user="u", nats_password_file=password) as bus:
            got: list[int] = []
            await bus.subscribe("test", lambda message: got.append(len(message.data)))
            own = 0 if headers is None else 10 + len("Nats-Service-Error-Code: 500\r\n") + 2

            assert await bus.publish("test", bytes(1024 - own), headers)
            assert not await bus.publish("test", bytes(1025 - own), headers)
            await bus.barrier()
            await bus.barrier()

            assert got == [1024 - own]
            assert not bus.lost.is_set()


async def test_the_greatest_size_is_the_last_one_told() -> None:
    """A server may tell another limit at any time; nats-py keeps that of the connect."""
    async with fake_server() as fake, connection_to(fake.url) as bus:
        assert bus.payload_bytes_max == 1_048_576
        assert fake.writer is not None
        fake.writer.write(b'INFO {"max_payload": 1024}\r\n')
        await bus.barrier()

        assert bus.payload_bytes_max == 1024
        assert not await bus.publish("test", bytes(1025))


async def test_a_reply_of_a_lost_connection_is_not_sent() -> None:
    """The inbox may be another request's by now."""
    async with fake_server() as fake, connection_to(fake.url, bus_lost_s=3) as bus:
        generation = bus.generation
        assert await bus.publish("inbox", b"in time", generation=generation)
        await bus.barrier()
        fake.writer.close()  # type: ignore[union-attr]
        await until(bus, reconnects=1)

        assert bus.generation > generation
        assert not await bus.publish("inbox", b"too late", generation=generation)
        assert await bus.publish("inbox", b"new", generation=bus.generation)
        await bus.barrier()
        assert b"in time" in fake.received
        assert b"too late" not in fake.received


async def test_what_was_not_sent_before_the_break_is_counted_and_never_sent() -> None:
    """nats-py keeps what it has not written, for whichever server comes next."""
    async with fake_server() as fake, connection_to(fake.url, bus_lost_s=3) as bus:
        await bus.barrier()
        for _ in range(3):
            assert await bus.publish("inbox", b"late")
        bus._client._flusher_task.cancel()
        await bus._client.force_reconnect()
        await until(bus, reconnects=1)

        await bus.barrier()
        assert bus.incidents.dropped_unsent == 3
        assert b"late" not in fake.received


async def test_a_subscription_that_was_ended_does_not_come_back() -> None:
    """Ended while there was no server: nats-py would subscribe it again at the next."""
    async with fake_server() as fake, connection_to(fake.url, bus_lost_s=3) as bus:
        ended = await bus.subscribe("ended", lambda _message: None)
        await bus.subscribe("kept", lambda _message: None)
        await bus.confirm()
        fake.received.clear()
        fake.writer.close()  # type: ignore[union-attr]
        async with asyncio.timeout(TIMEOUT_S):
            while bus.connected:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await bus.end(ended)
        await until(bus, reconnects=1)
        await bus.barrier()

        assert b"SUB kept" in fake.received
        assert b"SUB ended" not in fake.received


async def test_whoever_asked_something_of_the_server_is_told_of_a_reconnect() -> None:
    """Each is told, also after one that fails."""
    told: list[str] = []

    def fails() -> None:
        told.append("fails")
        raise RuntimeError

    async with fake_server() as fake, connection_to(fake.url, bus_lost_s=3) as bus:
        bus.on_reconnect += [fails, lambda: told.append("works")]
        fake.writer.close()  # type: ignore[union-attr]
        await until(bus, reconnects=1)
        await bus.barrier()

        assert told == ["fails", "works"]


def flood(server: EmbeddedServer, subject: str, *, count: int, payload: bytes) -> None:
    """Publish from a socket of our own, without the event loop, until the server has it all."""
    address = urlparse(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=TIMEOUT_S) as sock:
        line = b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(payload), payload)
        sock.sendall(b'CONNECT {"verbose":false}\r\n' + line * count + b"PING\r\n")
        answer = b""
        while b"PONG" not in answer:
            answer += sock.recv(65_536)


async def test_nothing_is_dropped_while_the_event_loop_is_blocked(server: EmbeddedServer) -> None:
    """The shortest messages there are, 60,000 of them: far more than a subscription may hold."""
    async with connection_to(server.url) as bus:
        got = 0

        def count(_message: object) -> None:
            nonlocal got
            got += 1

        await bus.subscribe("t", count)
        await bus.confirm()
        flood(server, "t", count=60_000, payload=b"")  # blocks the loop
        time.sleep(1.0)  # noqa: ASYNC251 - the fault: it blocks some more
        async with asyncio.timeout(TIMEOUT_S):
            while got < 60_000:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        assert bus.incidents.dropped_by_client == 0
        assert bus.generation == 1


async def test_what_nats_py_drops_is_counted(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should our limits be wrong after all, the heartbeat says so."""
    monkeypatch.setattr("actor.bus.connection.PENDING_MSGS_MAX", 2)
    async with connection_to(server.url) as bus:
        await bus.subscribe("test", lambda _message: None)
        await bus.confirm()
        flood(server, "test", count=10, payload=b"")
        await bus.barrier()

        assert bus.incidents.dropped_by_client == 8


async def test_a_slow_consumer_is_cut_and_comes_back(tmp_path: Path) -> None:
    """The server ends a connection that does not read; it is made again, with its subscription."""
    config = tmp_path / "nats.conf"
    config.write_text('max_pending: 1MB, write_deadline: "100ms"', encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        async with connection_to(server.url, bus_lost_s=6) as bus:
            got = asyncio.Event()
            await bus.subscribe("test", lambda _message: None)
            await bus.subscribe("after", lambda _message: got.set())
            await bus.confirm()
            flood(server, "test", count=100, payload=bytes(1_000_000))
            await until(bus, reconnects=1)

            assert await bus.publish("after", b"")
            async with asyncio.timeout(TIMEOUT_S):
                await got.wait()


def test_reconnects_are_spread_and_never_at_once() -> None:
    """From a tenth of the most to the most, which is 5 s and less for an impatient actor."""

    async def delays(bus_lost_s: float) -> list[float]:
        bus = Connection(Settings(bus_lost_s=bus_lost_s))
        return [bus._choose_server(["a", "b"], {})[1] for _ in range(200)]

    for bus_lost_s, most_s in ((60, 5), (6, 1), (0.6, 0.1)):
        seen = asyncio.run(delays(bus_lost_s))
        assert most_s / 10 <= min(seen) < most_s / 2 < max(seen) <= most_s
