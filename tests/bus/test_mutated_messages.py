"""10,000 random and mutated messages on all subjects: one reply each, and a good one at the end."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from urllib.parse import urlparse

import msgspec
import nats
from actors import connections_of, decision
from in_process import actor_in_process

from actor.bus.embedded import EmbeddedServer
from actor.settings import Settings

MESSAGES = 10_000
AT_ONCE = 200
SEED = 4

OTHERS = [f"$SRV.{verb}{who}" for verb in ("PING", "INFO", "STATS") for who in ("", ".semif")]
OTHERS += ["$SRV.STATS.semif.me", "$SRV.INFO.semif.me", "semif.v1.status"]
ASKED = ["semif.v1.score", "semif.v1.score_shared"]

GOOD = json.dumps(decision()).encode()
QUESTION = {key: decision()[key] for key in ("question", "options")}
SHARED_REQUEST = {"state": {"a": [1, "é", None]}, "decisions": [QUESTION, QUESTION | {"id": "x"}]}
SHARED = json.dumps(SHARED_REQUEST).encode()
BODIES = [GOOD, SHARED, *map(msgspec.msgpack.encode, (decision(), SHARED_REQUEST))]
PIECES = [
    *(b"", b"{", b"}", b"[" * 300, b'"', b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"NaN"),
    *(b"1e999", b"-0", b"7" * 400, b"null", b"true", b"\r\n", b"PING\r\n", b"MSG a 1 0\r\n\r\n"),
    *(b"\xc1", b"\xd9\xff", b"\xdf\xff\xff\xff\xff", b"\xc7\x01\x05x", b"\xef\xbb\xbf", b"state"),
]
HEADERS = [
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nContent-Type: application/msgpack\r\n\r\n",
    b"NATS/1.0\r\nContent-Type: application/json; charset=utf-8\r\nX: \r\n\r\n",
    b"NATS/1.0\r\nSemif-Timeout-Ms: 5000\r\nSEMIF-TIMEOUT-MS: 1\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: \xc3\xa9\r\ntraceparent: 00-00-00-00\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 100 FlowControl Request\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\nDescription: x\r\n\r\n",
    b"NATS/1.0\r\n\r\n\r\n\r\n",
    b"NATS/1.0",
    b"\xff\xfe\x00",
    b":\r\n:\r\n",
]
# Nobody may be answered there: the actor counts and drops. The first is no reply subject at all.
NOWHERE = [
    *(b"", b"orders.create", b"semif.v1.score", b"semif.v1.health.me", b"$JS.API.INFO", b"a"),
    *(b"$SRV.PING", b"_INBOX", b"_inbox.a", b"_INBOX_fuzz.a\x0cb", b"_INBOX_fuzz.a\x7f", b"\xff"),
    *(b"_INBOX_fuzz.\xff\xfe", b"_INBOX_fuzz.\xc2\x85", b"_INBOX_fuzz.a\x00", b"in.box"),
    b"_INBOX_fuzz." + b"a" * 600,
]


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it goes to the server."""

    subject: str
    reply: bytes
    headers: bytes | None
    body: bytes

    def wire(self) -> bytes:
        head = b" ".join(filter(None, (self.subject.encode(), self.reply)))
        if self.headers is None:
            return b"PUB %s %d\r\n%s\r\n" % (head, len(self.body), self.body)
        size = len(self.headers) + len(self.body)
        line = b"HPUB %s %d %d\r\n" % (head, len(self.headers), size)
        return line + self.headers + self.body + b"\r\n"


def mutated(content: bytes, dice: random.Random) -> bytes:
    """Change some bytes: flip, cut, repeat, insert what parsers stumble over."""
    data = bytearray(content)
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                del data[at : at + dice.randrange(40)]
            case 2:
                data[at:at] = data[at : at + dice.randrange(40)]
            case 3:
                data[at:at] = dice.choice(PIECES)
            case _:
                data[at:at] = dice.randbytes(dice.randrange(8))
    return bytes(data)


def message(number: int, dice: random.Random) -> tuple[Message, bool]:
    """Give a message, and whether it has a reply subject that can be used."""
    subject = dice.choice(ASKED if dice.random() < 0.8 else OTHERS)
    fitting = SHARED if subject == "semif.v1.score_shared" else GOOD
    body = dice.choice([fitting, fitting, *BODIES, dice.randbytes(dice.randrange(200)), b""])
    if dice.random() < 0.5:
        body = mutated(body, dice)
    headers = None if dice.random() < 0.5 else dice.choice(HEADERS)
    if headers and dice.random() < 0.5:
        headers = mutated(headers, dice) or None
    usable = dice.random() < 0.9
    reply = b"_INBOX_fuzz.%d" % number if usable else dice.choice(NOWHERE)
    if usable and number % 17 == 0:
        reply = b"_INBOX_fuzz.\xc3\xa9.%d" % number
    return Message(subject, reply, headers, body), usable


def is_text(content: bytes) -> bool:
    """True for UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


class RawClient:
    """A connection that writes any bytes and reads what the server sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.replies: Counter[bytes] = Counter()
        self.errors: list[bytes] = []

    async def send(self, messages: list[Message], replies: int) -> None:
        """Send, and read until so many replies have come; then everything that is left."""
        self.writer.write(b"".join(each.wire() for each in messages))
        while self.replies.total() < replies:
            await self.read()

    async def settle(self) -> None:
        """Read until the server has answered a ping."""
        self.writer.write(b"PING\r\n")
        while await self.read() != b"PONG\r\n":
            pass

    async def read(self) -> bytes:
        """Read one operation of the server."""
        line = await self.reader.readuntil(b"\r\n")
        if line.startswith((b"MSG ", b"HMSG ")):
            words = line.split(b" ")
            self.replies[words[1]] += 1
            await self.reader.readexactly(int(words[-1]) + 2)
        elif line == b"PING\r\n":
            self.writer.write(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            self.errors.append(line)
        else:
            assert line.startswith((b"PONG", b"INFO")), line
        return line


async def raw_client(url: str) -> RawClient:
    """Connect, and subscribe to the inboxes of this test."""
    address = urlparse(url)
    client = RawClient(*await asyncio.open_connection(address.hostname, address.port))
    client.writer.write(
        b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
        b"SUB _INBOX_fuzz.> 1\r\n"
    )
    await client.settle()
    return client


async def test_every_mutated_message_has_one_reply_and_the_next_good_one_too(
    server: EmbeddedServer,
) -> None:
    """The server's count of what the actor sent is the count of usable reply subjects."""
    dice = random.Random(SEED)  # noqa: S311 - the same messages each run
    pairs = [message(number, dice) for number in range(MESSAGES)]
    expected = {each.reply for each, usable in pairs if usable}
    # A reply subject that is no text is counted before anybody looks at the subject.
    requests = sum(each.subject in ASKED or not is_text(each.reply) for each, _ in pairs)
    settings = Settings(nats_url=server.url, instance="me", heartbeat_s=3600)
    client = await nats.connect(server.url)
    async with actor_in_process(settings, client) as beats:
        raw = await raw_client(server.url)
        [before], beats_before = connections_of(server, "me"), len(beats)
        async with asyncio.timeout(120):
            for start in range(0, MESSAGES, AT_ONCE):
                part = pairs[start : start + AT_ONCE]
                usable = sum(each for _, each in part)
                await raw.send([each for each, _ in part], raw.replies.total() + usable)
        good = await client.request("semif.v1.score", GOOD, timeout=10)
        await raw.settle()
        [after], beats_after = connections_of(server, "me"), len(beats)
        status = json.loads((await client.request("semif.v1.status", timeout=10)).data)
        raw.writer.close()
        await raw.writer.wait_closed()
    await client.close()

    assert json.loads(good.data)["choice"] in {"yes", "no"}
    assert raw.errors == []
    assert raw.replies.keys() == expected
    assert set(raw.replies.values()) == {1}
    sent = after["in_msgs"] - before["in_msgs"]
    assert sent == len(expected) + 1 + beats_after - beats_before
    assert after["cid"] == before["cid"]
    counters = status["counters"]
    assert counters["received"] == requests + 1
    refused = sum(counters["refused"].values())
    assert counters["answered"] + refused + counters["unanswerable"] == requests + 1
    assert counters["answered"] > 800
    assert counters["refused"].keys() >= {"malformed", "invalid", "unsupported_media_type"}
