"""A scripted NATS server, for what the real one cannot be made to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

INFO = {
    "server_id": "fake",
    "version": "2.15.1",
    "proto": 1,
    "headers": True,
    "max_payload": 1_048_576,
    "auth_required": True,
    "nonce": "a nonce",
}


@dataclass(slots=True)
class FakeServer:
    """Answers CONNECT and PING as a server does, and records every byte it gets."""

    info: dict[str, Any] = field(default_factory=lambda: dict(INFO))
    refuses: str | None = None
    """The error that answers CONNECT."""
    pongs: bool = True
    """Whether a PING is answered once the connection is made."""
    port: int = 0
    received: bytearray = field(default_factory=bytearray)
    connects: int = 0
    writer: asyncio.StreamWriter | None = None
    """To the client that came last."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk to one client until it goes."""
        self.writer = writer
        writer.write(b"INFO " + json.dumps(self.info).encode() + b"\r\n")
        answered = False
        while line := await reader.readline():
            self.received += line
            if line.startswith(b"CONNECT "):
                self.connects += 1
                if self.refuses:
                    self.error(self.refuses)
                    writer.close()
                    return
            elif line == b"PING\r\n" and (self.pongs or not answered):
                writer.write(b"PONG\r\n")
                answered = True
        writer.close()

    def error(self, text: str) -> None:
        """Send an error."""
        assert self.writer is not None
        self.writer.write(f"-ERR '{text}'\r\n".encode())

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"


@asynccontextmanager
async def fake_server(**changes: Any) -> AsyncIterator[FakeServer]:
    """Run a fake server until the block ends."""
    fake = FakeServer(**changes)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
        if fake.writer is not None:
            fake.writer.close()
        await server.wait_closed()
