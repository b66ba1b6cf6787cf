"""A TCP transport that never waits for its peer to let it go."""

from __future__ import annotations

import asyncio

from nats.aio.transport import TcpTransport

__all__ = ["CLOSE_GRACE_S", "ImpatientTransport"]

CLOSE_GRACE_S = 1.0
"""Seconds for the last bytes of a connection that is being closed."""


class ImpatientTransport(TcpTransport):  # type: ignore[misc]
    """Gives up on a peer that does not read.

    nats-py waits for the write buffer to empty before it reconnects, and before it closes: with a
    server that is gone behind a full buffer both would wait until TCP gives up, after minutes
    (nats.py issue 671).
    """

    async def wait_closed(self) -> None:
        """Wait a moment for the last bytes, then drop them."""
        try:
            async with asyncio.timeout(CLOSE_GRACE_S):
                await super().wait_closed()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Drop the connection now; whoever waits for it wakes up."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    @property
    def encrypted(self) -> bool:
        """True behind a TLS handshake."""
        writer = self._io_writer
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        writer = self._io_writer
        return 0 if writer is None else int(writer.transport.get_write_buffer_size())
