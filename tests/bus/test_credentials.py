"""Authentication and TLS: real servers that ask for each."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import nkeys
import pytest

from actor.bus.connection import BusLost, Connection
from actor.bus.credentials import credentials
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.settings import Settings


async def opens(server: EmbeddedServer, **changes: Any) -> bool:
    """Say whether a connection with these settings can be opened and used."""
    base = Settings(nats_url=server.url, instance="unit", bus_lost_s=2)
    connection = Connection(msgspec.structs.replace(base, **changes))
    try:
        await connection.open()
        await connection.barrier()
    except BusLost:
        return False
    finally:
        await connection.close()
    return True


async def test_a_password_comes_from_a_file_without_its_newline(tmp_path: Path) -> None:
    """The right password connects, with and without a final newline; a wrong one does not."""
    config = tmp_path / "nats.conf"
    config.write_text("authorization { user: u, password: secret }", encoding="utf-8")
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("secret\n", encoding="utf-8")
    wrong.write_text("other", encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        assert await opens(server, nats_user="u", nats_password_file=right)
        assert not await opens(server, nats_user="u", nats_password_file=wrong)


async def test_an_nkey_seed_comes_from_a_file(tmp_path: Path) -> None:
    """The server's challenge is signed with the seed of the file."""
    seed = b"SUAMK2FG4MI6UE3ACF3FK3OIQBCEIEZV7NSWFFEW63UXMRLFM2XLAXK4GY"
    pair = nkeys.from_seed(bytearray(seed))
    config = tmp_path / "nats.conf"
    public = pair.public_key.decode()
    config.write_text(f"authorization {{ users = [ {{ nkey: {public} }} ] }}", encoding="utf-8")
    file = tmp_path / "nkey"
    file.write_bytes(seed + b"\n")
    with embedded_server(tmp_path, config=config) as server:
        assert await opens(server, nats_nkey_file=file)
        assert not await opens(server)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Give a self-signed certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(cert), "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


async def test_tls_that_is_required_is_never_given_up(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """With handshake_first it connects; a plaintext server gets no connection, so no secret."""
    cert, key = certificate
    config = tmp_path / "nats.conf"
    config.write_text(
        f'tls {{ cert_file: "{cert}", key_file: "{key}", handshake_first: true }}',
        encoding="utf-8",
    )
    secure, plain = tmp_path / "secure", tmp_path / "plain"
    secure.mkdir()
    plain.mkdir()
    with embedded_server(secure, config=config) as server:
        assert await opens(server, nats_tls_ca=cert, nats_tls_required=True)
        assert not await opens(server, nats_tls_required=True)  # an authority nobody knows
    with embedded_server(plain) as server:
        assert not await opens(server, nats_tls_ca=cert, nats_tls_required=True)


def test_without_settings_there_are_no_credentials() -> None:
    """An actor on an open bus sends nothing."""
    assert credentials(Settings()) == {}
