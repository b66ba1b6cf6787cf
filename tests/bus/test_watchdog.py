"""Dead connections that nats-py believes in: noticed, and the process can still end."""

from __future__ import annotations

import asyncio
import signal
import time

import nats
import pytest
from connections import TIMEOUT_S, connection_to, lost, until
from fake_server import fake_server

from actor.bus.connection import OUTBOUND_BYTES_MAX
from actor.bus.embedded import EmbeddedServer
from actor.bus.watchdog import ping_interval_s

KERNEL_BYTES = 64 * 1024 * 1024
"""More than the two sockets of a loopback connection hold."""


async def test_a_server_that_never_answers_a_ping_is_a_loss() -> None:
    """The TCP connection is whole, and nobody is behind it."""
    async with fake_server(pongs=False) as fake, connection_to(fake.url, bus_lost_s=0.3) as bus:
        assert await lost(bus) == "no answer from a server for 0.3 s"


async def test_an_idle_connection_is_no_loss(server: EmbeddedServer) -> None:
    """Several times bus_lost_s without a message: the pings are answered, all is well."""
    async with connection_to(server.url, bus_lost_s=0.2) as bus:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bus.lost.wait(), 1.0)
        assert bus.incidents.reconnects == 0


async def test_a_blocked_event_loop_is_not_the_servers_fault(server: EmbeddedServer) -> None:
    """The loop stands still for several times bus_lost_s; afterwards the connection is the same."""
    async with connection_to(server.url, bus_lost_s=0.3) as bus:
        generation = bus.generation
        time.sleep(1.0)  # noqa: ASYNC251 - the fault
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bus.lost.wait(), 0.5)
        assert bus.generation == generation


async def test_a_stopped_server_behind_a_full_buffer_is_a_loss_and_close_returns(
    server: EmbeddedServer,
) -> None:
    """SIGSTOP with megabytes unsent: nats-py alone would wait for it, and so would its close."""
    async with connection_to(server.url, bus_lost_s=0.6) as bus:
        server.process.send_signal(signal.SIGSTOP)
        try:
            payload = bytes(500_000)
            sent = 0
            while await bus.publish("test", payload):
                sent += len(payload)
                assert sent < 2 * OUTBOUND_BYTES_MAX + KERNEL_BYTES
                await asyncio.sleep(0)
            assert await lost(bus) == "no answer from a server for 0.6 s"
        finally:
            await bus.close()
            server.process.send_signal(signal.SIGCONT)


async def test_a_server_that_pauses_is_no_loss(server: EmbeddedServer) -> None:
    """SIGSTOP and SIGCONT within bus_lost_s: everything goes on, on whichever connection."""
    async with connection_to(server.url, bus_lost_s=5) as bus:
        got = asyncio.Event()
        await bus.subscribe("test", lambda _message: got.set())
        await bus.confirm()
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bus.lost.wait(), 1.0)
        server.process.send_signal(signal.SIGCONT)
        other = await nats.connect(server.url)
        await other.publish("test", b"")
        async with asyncio.timeout(TIMEOUT_S):
            await got.wait()
        await other.close()
        assert not bus.lost.is_set()


@pytest.mark.parametrize("task", ["_reading_task", "_flusher_task", "_ping_interval_task"])
async def test_a_connection_whose_task_has_ended_is_replaced(
    server: EmbeddedServer, task: str
) -> None:
    """nats-py looks at none of its tasks; is_connected stays true and nothing moves."""
    async with connection_to(server.url, bus_lost_s=1.5) as bus:
        got = asyncio.Event()
        await bus.subscribe("test", lambda _message: got.set())
        await bus.confirm()
        getattr(bus._client, task).cancel()
        await until(bus, reconnects=1)

        assert await bus.publish("test", b"")
        async with asyncio.timeout(TIMEOUT_S):
            await got.wait()


async def test_a_subscription_that_nobody_delivers_is_a_loss(server: EmbeddedServer) -> None:
    """A cancellation out of a callback ends its delivery without a word (facts: 0.4)."""
    async with connection_to(server.url, bus_lost_s=1.5) as bus:

        async def cancelled(_message: object) -> None:
            raise asyncio.CancelledError

        await bus.subscribe("test", cancelled)
        await bus.publish("test", b"")

        assert await lost(bus) == "the delivery of test has ended: a bug"


async def test_a_flush_that_is_given_up_does_not_end_the_read_loop(
    server: EmbeddedServer,
) -> None:
    """The late PONG of a cancelled flush is swallowed, and the next flush has its own."""
    async with connection_to(server.url) as bus:
        flush = asyncio.create_task(bus.barrier())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        flush.cancel()
        await asyncio.gather(flush, return_exceptions=True)

        for _ in range(3):
            await bus.barrier()
        assert bus.generation == 1


def test_pings_are_asked_often_enough_for_the_loss() -> None:
    """Six in the time of a loss, and at least one in ten seconds."""
    assert ping_interval_s(60) == 10
    assert ping_interval_s(3600) == 10
    assert ping_interval_s(3) == 0.5
