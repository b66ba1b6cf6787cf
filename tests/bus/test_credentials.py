"""Authentication and TLS: real servers that ask for each."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import nkeys
import pytest

from actor.bus.connection import BusLost, Connection
from actor.bus.credentials import credentials
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.settings import Settings

OPERATOR, ACCOUNT, USER = (
    nkeys.PREFIX_BYTE_OPERATOR,
    nkeys.PREFIX_BYTE_ACCOUNT,
    nkeys.PREFIX_BYTE_USER,
)


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


async def test_a_server_that_wants_a_client_certificate_gets_it(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """Mutual TLS: with the certificate it connects, without it does not."""
    cert, key = certificate
    config = tmp_path / "nats.conf"
    config.write_text(
        f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{cert}", verify: true }}',
        encoding="utf-8",
    )
    with embedded_server(tmp_path, config=config) as server:
        assert await opens(server, nats_tls_ca=cert, nats_tls_cert=cert, nats_tls_key=key)
        assert not await opens(server, nats_tls_ca=cert)


async def test_a_jwt_and_its_seed_come_from_a_creds_file(tmp_path: Path) -> None:
    """The user's JWT is shown and the challenge signed; another user's seed does not do."""
    operator, account, user, other = (new_key(kind) for kind in (OPERATOR, ACCOUNT, USER, USER))
    config = tmp_path / "nats.conf"
    config.write_text(
        f"operator: {jwt(operator, operator, 'operator')}\n"
        "resolver: MEMORY\n"
        f"resolver_preload: {{ {public(account)}: {jwt(account, operator, 'account')} }}\n",
        encoding="utf-8",
    )
    right, wrong = tmp_path / "right.creds", tmp_path / "wrong.creds"
    token = jwt(user, account, "user")
    right.write_text(creds(token, user), encoding="utf-8")
    wrong.write_text(creds(token, other), encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        assert await opens(server, nats_creds=right)
        assert not await opens(server, nats_creds=wrong)
        assert not await opens(server)


def new_key(kind: int) -> nkeys.KeyPair:
    """Give a new key pair of a kind."""
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), kind)))


def public(key: nkeys.KeyPair) -> str:
    """Give the public key as NATS writes it."""
    text: str = key.public_key.decode()
    return text


def jwt(subject: nkeys.KeyPair, issuer: nkeys.KeyPair, kind: str) -> str:
    """Give a NATS JWT (version 2) for ``subject``, signed by ``issuer``."""
    unlimited = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1)
    limits: dict[str, dict[str, Any]] = {
        "account": {"limits": unlimited},
        "user": {"subs": -1, "data": -1, "payload": -1},
    }
    claims = {
        "jti": kind,
        "iat": int(time.time()),
        "iss": public(issuer),
        "sub": public(subject),
        "name": kind,
        "nats": {"type": kind, "version": 2} | limits.get(kind, {}),
    }
    parts = [base64url(json.dumps(p)) for p in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)]
    signed = ".".join(parts)
    return f"{signed}.{base64url(issuer.sign(signed.encode()))}"


def base64url(content: str | bytes) -> str:
    """Give base64url without padding, as JWTs want it."""
    raw = content.encode() if isinstance(content, str) else content
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def creds(token: str, key: nkeys.KeyPair) -> str:
    """Give the text of a ``.creds`` file, as ``nsc`` writes it."""
    dashes = "-" * 5
    return (
        f"{dashes}BEGIN NATS USER JWT{dashes}\n{token}\n{dashes}-END NATS USER JWT-{dashes}\n\n"
        f"{dashes}BEGIN USER NKEY SEED{dashes}\n{key.seed.decode()}\n"
        f"{dashes}-END USER NKEY SEED-{dashes}\n"
    )


def test_without_settings_there_are_no_credentials() -> None:
    """An actor on an open bus sends nothing."""
    assert credentials(Settings()) == {}
