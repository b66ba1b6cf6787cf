"""nats-py's client with a read loop that no message can end, and a connect that no file can.

nats-py 2.16 decodes reply subjects and headers inside its read loop, and any exception there ends
the loop while ``is_connected`` stays true: for half a minute, until two pings were missed, the
actor would hear nothing, answer nobody and call itself ready. Whoever may publish to a request
subject could do that with one message: headers of eight bytes, or a byte in a reply subject that
is not UTF-8.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import nats.errors
import nats.protocol.parser
import structlog
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client
from nats.aio.subscription import Subscription

from actor.bus.transport import ImpatientTransport
from actor.wire import UNREADABLE_HEADERS

__all__ = ["CredentialsRefused", "TolerantClient", "is_refused"]

_log = structlog.get_logger()

# The server parts the words of a control line by spaces and tabs, nats-py by all white space: a
# form feed in a reply subject would be a protocol error to it, and end the connection.
_WORD = rb"([^ \t\r\n]+)"
_HEAD = rb"[ \t]+" + _WORD + rb"[ \t]+" + _WORD + rb"[ \t]+(" + _WORD + rb"[ \t]+)?"
nats.protocol.parser.MSG_RE = re.compile(rb"\AMSG" + _HEAD + rb"(\d+)\r\n")
nats.protocol.parser.HMSG_RE = re.compile(rb"\AHMSG" + _HEAD + rb"(\d+)[ \t]+(\d+)\r\n")


class CredentialsRefused(Exception):
    """The server does not let us in; the text is the server's.

    No error of nats-py on purpose: its connect retries all of its own.
    """


def is_refused(text: str) -> bool:
    """True for the server's words about who may connect."""
    words = text.lower()
    return "authorization violation" in words or (
        "authentication" in words and "timeout" not in words
    )


class TolerantClient(Client):  # type: ignore[misc]
    """Delivers what can be answered, counts and drops the rest, and reads on.

    With ``require_tls`` nothing is sent to a server that is not behind TLS.
    """

    def __init__(
        self, on_unreadable: Callable[[], None] = lambda: None, *, require_tls: bool = False
    ) -> None:
        super().__init__()
        self._transport: Any
        self._max_payload: int
        self._on_unreadable = on_unreadable
        self.require_tls = require_tls
        self.generation = 0
        """Counts the connects; a request belongs to the connection that it came by."""
        self._was_connected = False

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

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any
    ) -> Any:
        # A stream gives a message again and again until it is settled, whatever its subject; the
        # reply subject has to be right to the last byte, or the message is nobody's to answer.
        readable = subject.decode(errors="replace").encode()
        return super()._build_message(sid, readable, reply, data, headers)

    async def _process_pong(self) -> None:
        # To set a result on a flush that was given up meanwhile would end the read loop.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        # Of a reload: nats-py takes the limit of the connect alone, and to send more than the
        # server takes ends the connection for good.
        self._max_payload = info.get("max_payload", self._max_payload)

    async def _connect_to_server(self, s: Any) -> None:
        if self._transport is not None:
            self._transport.close()
        self._transport = ImpatientTransport()
        s.last_attempt = time.monotonic()
        timeout_s = self.options["connect_timeout"]
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, timeout_s)

    async def _process_connect_init(self) -> None:
        self.generation += 1
        try:
            await super()._process_connect_init()
        except nats.errors.Error as error:
            text = str(error).removeprefix("nats: ").strip("'")
            if is_refused(text) and not self._was_connected:
                raise CredentialsRefused(text) from None
            raise
        except (OSError, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - another kind would end the reconnecting
            raise nats.errors.Error(f"no connect: {type(error).__name__}") from None
        self._was_connected = True

    def _connect_command(self) -> bytes:
        # The first bytes that a server gets of us, with the credentials in them: checked here.
        if self.require_tls and not self._encrypted():
            raise nats.errors.SecureConnRequiredError
        command: bytes = super()._connect_command()
        return command

    def _encrypted(self) -> bool:
        return isinstance(self._transport, ImpatientTransport) and self._transport.encrypted

    @property
    def usable(self) -> bool:
        """True while connected, and all of nats-py's own tasks are at work.

        It looks at none of them: one that has ended makes a connection that looks well and does
        nothing.
        """
        return bool(
            self.is_connected
            and not self._reading_task.done()
            and not self._flusher_task.done()
            and not self._ping_interval_task.done()
        )

    @property
    def pongs(self) -> int:
        """Answers to pings so far: each proves both directions of the connection."""
        answered: int = self._pongs_received
        return answered

    @property
    def unsent_bytes(self) -> int:
        """Bytes published that the kernel has not taken yet."""
        transport = self._transport
        sent: int = self.pending_data_size
        return sent + (transport.unsent_bytes if isinstance(transport, ImpatientTransport) else 0)

    @property
    def deaf_subjects(self) -> list[str]:
        """Subjects whose subscription is alive while the task that delivers it has ended."""
        return [
            str(subscription.subject)
            for subscription in self._subs.values()
            if not subscription._closed  # noqa: SLF001
            and (task := subscription._wait_for_msgs_task) is not None  # noqa: SLF001
            and task.done()
        ]

    def forget_unsent(self) -> int:
        """Drop what waits for a connection that is lost; gives how many messages that were.

        And the subscriptions that were being ended: nats-py would send all of this to the next
        server, where an inbox may be another request's by then.
        """
        dropped: int = sum(command.startswith((b"PUB", b"HPUB")) for command in self._pending)
        self._pending.clear()
        self._pending_data_size = 0
        for number, subscription in list(self._subs.items()):
            if subscription._closed:  # noqa: SLF001
                del self._subs[number]
        return dropped

    async def announce_end(self, subscription: Subscription) -> None:
        """Tell the server; what it has already sent is still delivered."""
        subscription._closed = True  # noqa: SLF001 - not again after a reconnect
        if self.is_connected:
            await self._send_unsubscribe(subscription._id)  # noqa: SLF001

    async def end(self, subscription: Subscription) -> None:
        """Deliver what has come, then forget the subscription."""
        delivering = subscription._wait_for_msgs_task  # noqa: SLF001
        if delivering is not None and not delivering.done():
            rest = asyncio.create_task(subscription._pending_queue.join())  # noqa: SLF001
            await asyncio.wait({rest, delivering}, return_when=asyncio.FIRST_COMPLETED)
            rest.cancel()
        subscription._stop_processing()  # noqa: SLF001
        self._remove_sub(subscription._id)  # noqa: SLF001

    def abort(self) -> None:
        """Drop the TCP connection now."""
        if isinstance(self._transport, ImpatientTransport):
            self._transport.abort()
