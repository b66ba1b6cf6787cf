"""A stream's message on its way through the actor, and what may become of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from nats.aio.msg import Msg

from actor.wire import UNREADABLE_HEADERS
from schemas.subjects import JETSTREAM_ACK

__all__ = ["Delivery", "Done", "Hopeless", "Retry", "Verdict", "core_delivery", "delivery_of"]

ACK_PREFIX = f"{JETSTREAM_ACK}."
PLAIN_TOKENS = 9
"""``$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<timestamp>.<pending>``"""
DOMAIN_TOKENS = 11
"""The same with the domain and the account's hash after ``$JS.ACK``; more may follow."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery of a message. Of a core subject: without stream and sequence."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    """As they came, names in the sender's case. Empty when they cannot be read."""
    headers_unreadable: bool = False
    stream: str = ""
    sequence: int = 0
    """Of the stream."""
    timestamp_ns: int = 0
    """When the stream took the message."""
    deliveries: int = 1
    """Times it was delivered, this one included."""

    @property
    def message_id(self) -> str:
        """Give the message's name for deduplication; empty outside of a stream.

        With the time: a stream made anew starts at sequence 1 again, and its results must not be
        taken for duplicates of the old one's.
        """
        return f"{self.stream}.{self.sequence}.{self.timestamp_ns}" if self.stream else ""


class Done(msgspec.Struct, frozen=True):
    """Everything that the message asked is stored, and confirmed: acknowledge it."""

    code: str = "done"
    """What happened, for the counters."""
    generation: int | None = None
    """The connection by which something was published that nobody acknowledges: only by the same
    one, behind it, does the acknowledgement prove that the server has that too.
    """


class Retry(msgspec.Struct, frozen=True):
    """Deliver it again later. At the last delivery it becomes a dead letter."""

    code: str
    reason: str
    after_s: float = 0.0
    """Not before these seconds have passed."""


class Hopeless(msgspec.Struct, frozen=True):
    """No delivery will do better: to the dead letters."""

    code: str
    reason: str


Verdict = Done | Retry | Hopeless


def delivery_of(message: Msg) -> Delivery | None:
    """Read a message that came from a consumer; None when it is something else.

    By its reply subject alone: the headers are the sender's, who may write ``Status`` there too.
    """
    if not message.reply.startswith(ACK_PREFIX):
        return None
    tokens = message.reply.split(".")
    if len(tokens) >= DOMAIN_TOKENS:
        tokens = tokens[2:]
    if len(tokens) < PLAIN_TOKENS:
        return None
    try:
        return msgspec.structs.replace(
            core_delivery(message),
            stream=tokens[2],
            deliveries=int(tokens[4]),
            sequence=int(tokens[5]),
            timestamp_ns=int(tokens[7]),
        )
    except ValueError:
        return None


def core_delivery(message: Msg) -> Delivery:
    """Read a message of a core subject."""
    headers = message.headers or {}
    unreadable = UNREADABLE_HEADERS in headers
    return Delivery(
        subject=message.subject,
        payload=message.data,
        headers={} if unreadable else headers,
        headers_unreadable=unreadable,
    )
