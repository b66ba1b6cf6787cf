"""No message, however broken, makes the actor deaf: each is answered or counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import nats
import pytest
from actors import Served, ask, decision, error_of, serving

BODY = json.dumps(decision()).encode()


@pytest.fixture(scope="module")
def served(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Give an actor on a tiny model that also answers below ``in.``."""
    settings = {"SEMIF_REPLY_PREFIXES": "_INBOX.,in."}
    with serving(tiny_llama, tmp_path_factory.mktemp("poison"), settings=settings) as running:
        yield running


async def send_raw(url: str, reply: bytes, headers: bytes | None) -> bytes:
    """Publish a request with these very bytes; give what comes to ``in.>`` until one more ping."""
    address = urlparse(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    await reader.readline()  # INFO
    writer.write(
        b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
        b"SUB in.> 1\r\n"
    )
    size = b"%d" % (len(BODY) + len(headers or b""))
    if headers is None:
        writer.write(b"PUB semif.v1.score %s %s\r\n%s\r\n" % (reply, size, BODY))
    else:
        line = b"HPUB semif.v1.score %s %d %s\r\n" % (reply, len(headers), size)
        writer.write(line + headers + BODY + b"\r\n")
    try:
        async with asyncio.timeout(30):
            while not (line := await reader.readline()).startswith((b"MSG", b"HMSG")):
                pass
            return line + await reader.readexactly(int(line.split()[-1]))
    except TimeoutError:
        return b""
    finally:
        writer.close()


async def unanswerable(url: str) -> int:
    """Ask the actor how many requests it could not answer."""
    client = await nats.connect(url)
    status = json.loads((await client.request("semif.v1.status", timeout=10)).data)
    await client.close()
    count: int = status["counters"]["unanswerable"]
    assert status["bus"]["reconnects"] == 0
    return count


async def check_good(url: str) -> None:
    """The next good request has its answer at once, on the same connection of the actor."""
    client = await nats.connect(url)
    reply = await ask(client, decision(), timeout_s=10)
    await client.close()
    assert "choice" in json.loads(reply.data)


@pytest.mark.parametrize(
    "headers",
    [
        b"NATS/1.0",
        b"NATS/1.0 \xff\xff\xff\r\n\r\n",
        b"NATS/1.0 404 \xff\r\n\r\n",
    ],
    ids=repr,
)
async def test_headers_that_cannot_be_read_are_malformed(served: Served, headers: bytes) -> None:
    """One reply, 400, and the next request is heard."""
    reply = await send_raw(served.url, b"in.box", headers)

    assert b"Nats-Service-Error-Code: 400" in reply
    assert b'"code":"malformed"' in reply
    await check_good(served.url)


@pytest.mark.parametrize(
    "headers",
    [
        b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\xff",
        b"NATS/1.0\r\nfoo",
        b"NATS/1.0\r\n:\r\n\r\n",
        b"NATS/1.0 100 x\r\n\xff: \xff\r\n\r\n",
    ],
    ids=repr,
)
async def test_odd_headers_have_one_reply(served: Served, headers: bytes) -> None:
    """Readable after all, or not: there is an answer either way."""
    assert await send_raw(served.url, b"in.box", headers) != b""
    await check_good(served.url)


@pytest.mark.parametrize(
    "reply",
    [b"in.\xff\xfe", b"\xc3\x28", b"in.\xed\xa0\x80", b"in.\x0c\x0bbox", b"orders.create"],
    ids=repr,
)
async def test_a_reply_subject_that_is_no_inbox_is_counted(served: Served, reply: bytes) -> None:
    """Nobody is answered there; the count says so, and the connection lives.

    The server takes a form feed for a part of the subject, nats-py for the end of it.
    """
    before = await unanswerable(served.url)
    client = await nats.connect(served.url)
    sending = asyncio.create_task(send_raw(served.url, reply, None))
    try:
        async with asyncio.timeout(20):
            while await unanswerable(served.url) == before:
                await client.flush()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await client.close()

    assert await unanswerable(served.url) == before + 1
    await check_good(served.url)


async def test_a_good_request_is_unchanged(served: Served) -> None:
    """A bad one by its body is answered as ever, with its headers read."""
    client = await nats.connect(served.url)
    reply = await ask(client, b"{", headers={"Content-Type": "application/json"})
    await client.close()

    assert error_of(reply)["code"] == "malformed"
