"""A cluster of real nats-servers on ports that stay the same, each of which can be hurt."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from actor.bus.embedded import EmbeddedServer, embedded_server

PORTS = range(20_000, 30_000)
"""Below those that Linux gives to outgoing connections: nobody takes one while its node is down."""
LAME_DUCK = 'lame_duck_duration: "30s", lame_duck_grace_period: "3s"'
"""30 s is the least there is; with few connections it takes one second for each."""


def free_port() -> int:
    """Give a port that nobody listens on."""
    while True:
        port = random.choice(PORTS)  # noqa: S311 - not a secret
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Node:
    """One server. :meth:`start` again after :meth:`kill`: same port, same name."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self.name = name
        self.port = free_port()
        self.cluster_port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._config = folder / "nats.conf"
        self._running: ExitStack | None = None
        self._server: EmbeddedServer | None = None

    def configure(self, others: list[Node]) -> None:
        """Write the configuration, with the way to the other nodes."""
        routes = ", ".join(f'"nats://127.0.0.1:{each.cluster_port}"' for each in others)
        self._config.write_text(
            f"server_name: {self.name}\n{LAME_DUCK}\n"
            f'cluster {{ name: test, listen: "127.0.0.1:{self.cluster_port}", '
            f"routes: [{routes}] }}\n",
            encoding="utf-8",
        )

    def start(self, *, trace: bool = False) -> None:
        """Start the server and wait until it listens."""
        self._running = ExitStack()
        context = embedded_server(self._folder, config=self._config, port=self.port, trace=trace)
        self._server = self._running.enter_context(context)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._server is not None
        self._server.process.send_signal(number)

    def kill(self) -> None:
        """End it without a word; also one that is stopped, or in lame duck mode."""
        if self._server is not None and self._running is not None:
            self._server.process.kill()
            self._server.process.wait()
            self._running.close()

    async def ended(self) -> None:
        """Wait until the process has ended by itself."""
        assert self._server is not None
        await asyncio.to_thread(self._server.process.wait)


@contextmanager
def cluster_of_three(folder: Path, *, trace: bool = False) -> Iterator[list[Node]]:
    """Run three nodes that know each other."""
    nodes = [Node(folder / name, name) for name in ("n0", "n1", "n2")]
    try:
        for node in nodes:
            node.configure([each for each in nodes if each is not node])
            node.start(trace=trace)
        yield nodes
    finally:
        for node in nodes:
            node.kill()
