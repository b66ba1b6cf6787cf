"""nats-py's client with a read loop that no message can end.

nats-py 2.16 decodes reply subjects and headers inside its read loop, and any exception there ends
the loop while ``is_connected`` stays true: for half a minute, until two pings were missed, the
actor would hear nothing, answer nobody and call itself ready. Whoever may publish to a request
subject could do that with one message: headers of eight bytes, or a byte in a reply subject that
is not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import nats.protocol.parser
import structlog
from nats.aio.client import Client

from actor.wire import UNREADABLE_HEADERS

__all__ = ["TolerantClient"]

_log = structlog.get_logger()

# The server parts the words of a control line by spaces and tabs, nats-py by all white space: a
# form feed in a reply subject would be a protocol error to it, and end the connection.
_WORD = rb"([^ \t\r\n]+)"
_HEAD = rb"[ \t]+" + _WORD + rb"[ \t]+" + _WORD + rb"[ \t]+(" + _WORD + rb"[ \t]+)?"
nats.protocol.parser.MSG_RE = re.compile(rb"\AMSG" + _HEAD + rb"(\d+)\r\n")
nats.protocol.parser.HMSG_RE = re.compile(rb"\AHMSG" + _HEAD + rb"(\d+)[ \t]+(\d+)\r\n")


class TolerantClient(Client):  # type: ignore[misc]
    """Delivers what can be answered, counts and drops the rest, and reads on."""

    def __init__(self, on_unreadable: Callable[[], None]) -> None:
        super().__init__()
        self._on_unreadable = on_unreadable

    async def _process_headers(self, headers: Any) -> Any:
        try:
            return await super()._process_headers(headers)
        except Exception:  # noqa: BLE001 - see the module's docstring
            return {UNREADABLE_HEADERS: "1"}

    async def _process_msg(self, *message: Any) -> None:
        try:
            await super()._process_msg(*message)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            self._on_unreadable()
            _log.warning("a message cannot be read", error=type(error).__name__)
