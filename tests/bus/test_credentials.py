"""Authentication and TLS: real servers that ask for each."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import nkeys
import pytest
from fake_server import fake_server
from hypothesis import given
from hypothesis import strategies as st

from actor.bus.connection import BusLost, Connection
from actor.bus.credentials import BadCredentials, credentials
from actor.bus.embedded import EmbeddedServer, embedded_server
from actor.settings import Settings

OPERATOR, ACCOUNT, USER = (
    nkeys.PREFIX_BYTE_OPERATOR,
    nkeys.PREFIX_BYTE_ACCOUNT,
    nkeys.PREFIX_BYTE_USER,
)


async def opens(server: EmbeddedServer, **changes: Any) -> bool:
    """Say whether a connection with these settings can be opened and used."""
    base = Settings(nats_url=server.url, instance="unit", bus_lost_s=0.6)
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


@pytest.mark.parametrize(
    ("urls", "options"),
    [
        ("nats://u:p@a:1, u:p@b", {"user": "u", "password": "p"}),
        ("nats://secret@a", {"token": "secret"}),
        ("nats://u:p@a,nats://v:p@b", {}),
        ("nats://u:p@a,nats://b", {}),
        ("a,b", {}),
    ],
)
def test_what_all_urls_say_is_for_every_server(urls: str, options: dict[str, str]) -> None:
    """Also for those that the client finds by itself; nats-py would show it to the named alone."""
    assert credentials(Settings(nats_url=urls)) == options


async def test_a_token_comes_from_a_file(tmp_path: Path) -> None:
    """The right token connects, a wrong one does not."""
    config = tmp_path / "nats.conf"
    config.write_text("authorization { token: secret }", encoding="utf-8")
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("secret\n", encoding="utf-8")
    wrong.write_text("other\n", encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        assert await opens(server, nats_token_file=right)
        assert not await opens(server, nats_token_file=wrong)


def good_creds() -> str:
    """Give the text of a ``.creds`` file whose JWT belongs to its seed."""
    account, user = new_key(ACCOUNT), new_key(USER)
    return creds(jwt(user, account, "user"), user)


def test_a_creds_file_that_is_cut_short_is_refused_wherever_that_is(tmp_path: Path) -> None:
    """nats-py reads the first half of one in an endless loop. No text of it is in the error."""
    text, file = good_creds(), tmp_path / "user.creds"
    whole = text.index("END USER NKEY SEED") + len("END USER NKEY SEED")
    for length in range(whole):
        file.write_text(text[:length], encoding="utf-8")
        with pytest.raises(BadCredentials, match=r"^nats_creds: ") as caught:
            credentials(Settings(nats_creds=file))
        assert not secrets_in(str(caught.value), text)
    file.write_text(text[:whole], encoding="utf-8")
    assert set(credentials(Settings(nats_creds=file))) == {"user_jwt_cb", "signature_cb"}


def secrets_in(said: str, text: str) -> list[str]:
    """Give the lines of a file that an error repeats."""
    return [line for line in text.splitlines() if len(line) > 40 and line[:20] in said]


@given(data=st.data())
def test_a_creds_file_with_a_wrong_byte_is_refused_or_the_same(data: st.DataObject) -> None:
    """Any other byte anywhere: a clear refusal, or what was read is what was written."""
    text = good_creds().encode()
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.binary(min_size=1, max_size=1)) + text[place + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "user.creds"
        file.write_bytes(changed)
        try:
            options = credentials(Settings(nats_creds=file))
        except BadCredentials as error:
            assert str(error).startswith("nats_creds: ")  # noqa: PT017 - either is right
        else:
            signed = base64.b64decode(options["signature_cb"]("nonce"))
            seed = next(line for line in text.splitlines() if line.startswith(b"SU"))
            assert nkeys.from_seed(bytearray(seed)).verify(b"nonce", signed)


def test_an_nkey_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    """Every length but the whole, an account's seed, and text that is none."""
    seed, file = bytes(new_key(USER).seed), tmp_path / "nkey"
    cut = [seed[:length] for length in range(len(seed))]
    for content in [*cut, bytes(new_key(ACCOUNT).seed), b"\xff" * 58, seed + b"AA"]:
        file.write_bytes(content)
        with pytest.raises(BadCredentials, match=r"^nats_nkey_file: ") as caught:
            credentials(Settings(nats_nkey_file=file))
        assert seed[:20].decode() not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["nats_password_file", "nats_token_file"])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    """Empty, or not text: the setting is named."""
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(BadCredentials, match=f"^{name}: "):
        credentials(msgspec.structs.replace(Settings(nats_user="u"), **{name: file}))


@pytest.mark.parametrize(
    "names", [["nats_tls_ca"], ["nats_tls_cert", "nats_tls_key"]], ids=lambda names: names[0]
)
def test_a_certificate_that_is_none_is_refused(tmp_path: Path, names: list[str]) -> None:
    """The setting is named, nothing of the file is said."""
    file = tmp_path / "pem"
    file.write_text("no certificate", encoding="utf-8")
    with pytest.raises(BadCredentials, match=f"^{names[0]}") as caught:
        credentials(msgspec.structs.replace(Settings(), **dict.fromkeys(names, file)))
    assert str(file) not in str(caught.value)


async def test_a_creds_file_that_breaks_later_ends_in_retries(tmp_path: Path) -> None:
    """Renewed in place and read half-written: the reconnect fails, the next one finds it whole."""
    text, file = good_creds(), tmp_path / "user.creds"
    file.write_text(text, encoding="utf-8")
    async with fake_server() as fake:
        bus = Connection(Settings(nats_url=fake.url, nats_creds=file, bus_lost_s=3))
        await bus.open()
        file.write_text(text[:30], encoding="utf-8")
        assert fake.writer is not None
        fake.writer.close()
        async with asyncio.timeout(20):
            while "BadCredentials" not in str(bus._client.last_error):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            file.write_text(text, encoding="utf-8")
            while bus.incidents.reconnects == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not bus.lost.is_set()
        await bus.close()


@pytest.mark.parametrize("asked", ["nats_tls_required", "nats_tls_ca", "tls://"])
async def test_a_plaintext_server_gets_no_credentials(
    certificate: tuple[Path, Path], tmp_path: Path, asked: str
) -> None:
    """A man in the middle says that there is no TLS here: he learns nothing but a handshake."""
    asking: dict[str, dict[str, Any]] = {
        "nats_tls_required": {"nats_tls_required": True},
        "nats_tls_ca": {"nats_tls_ca": certificate[0]},
        "tls://": {},
    }
    password = tmp_path / "password"
    password.write_text("secret", encoding="utf-8")
    async with fake_server() as fake:
        url = fake.url.replace("nats://", "tls://") if asked == "tls://" else fake.url
        base = Settings(
            nats_url=url, nats_user="somebody", nats_password_file=password, bus_lost_s=0.5
        )
        bus = Connection(msgspec.structs.replace(base, **asking[asked]))
        with pytest.raises(BusLost):
            await bus.open()
        await bus.close()

        assert fake.connects == 0
        for secret in (b"CONNECT", b"somebody", b"secret"):
            assert secret not in fake.received


async def test_a_tls_url_is_enough_for_a_server_that_speaks_first(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """The usual server: INFO in plaintext, then the handshake; its authority must be known."""
    cert, key = certificate
    config = tmp_path / "nats.conf"
    config.write_text(f'tls {{ cert_file: "{cert}", key_file: "{key}" }}', encoding="utf-8")
    with embedded_server(tmp_path, config=config) as server:
        url = server.url.replace("nats://", "tls://")
        assert await opens(server, nats_url=url, nats_tls_ca=cert)
        assert not await opens(server, nats_url=url)


async def test_a_server_with_new_certificates_is_known_by_its_authority(tmp_path: Path) -> None:
    """Restarted on a renewed certificate it is used; on another authority's it is not."""
    ours, theirs = authority(tmp_path, "ours"), authority(tmp_path, "theirs")
    folder = tmp_path / "first"
    with tls_server(folder, signed_by(tmp_path, "old", *ours)) as server:
        port = int(server.url.rsplit(":", 1)[1])
        bus = Connection(
            Settings(
                nats_url=server.url, nats_tls_ca=ours[0], nats_tls_required=True, bus_lost_s=1.5
            )
        )
        await bus.open()
    with tls_server(tmp_path / "second", signed_by(tmp_path, "new", *ours), port=port):
        async with asyncio.timeout(20):
            while bus.incidents.reconnects == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await bus.barrier()
    with tls_server(tmp_path / "third", signed_by(tmp_path, "evil", *theirs), port=port):
        async with asyncio.timeout(20):
            await bus.lost.wait()
        assert bus.incidents.reconnects == 1
    await bus.close()


@contextmanager
def tls_server(
    folder: Path, certificate: tuple[Path, Path], *, port: int = -1
) -> Iterator[EmbeddedServer]:
    """Run a server with a certificate that shakes hands first."""
    folder.mkdir()
    config = folder / "nats.conf"
    config.write_text(
        f'tls {{ cert_file: "{certificate[0]}", key_file: "{certificate[1]}",'
        " handshake_first: true }",
        encoding="utf-8",
    )
    with embedded_server(folder, config=config, port=port) as server:
        yield server


def authority(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate authority."""
    cert, key = folder / f"{name}.ca.pem", folder / f"{name}.ca.key"
    openssl("req", "-x509", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", cert)
    return cert, key


def signed_by(folder: Path, name: str, ca: Path, ca_key: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 that the authority has signed."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    openssl(
        *("req", "-x509", *NEW_KEY, "-subj", "/CN=127.0.0.1", "-keyout", key, "-out", cert),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"),
        *("-CA", ca, "-CAkey", ca_key),
    )
    return cert, key


NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


def openssl(*arguments: str | Path) -> None:
    """Run openssl."""
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
