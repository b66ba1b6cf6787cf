"""How a connection proves who it is, and what it asks of the server in return.

Every file is read and checked before the first byte goes to a server: nats-py reads a truncated
``.creds`` file in an endless loop, and a bad seed ends its reconnecting without a word. The texts
name the setting, never what is in the file.
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nkeys

from actor.settings import Settings

__all__ = ["BadCredentials", "credentials", "servers", "wants_tls"]

SEED_BYTES = 36
"""Of an nkey seed without its base32: two of prefix, 32 of seed, two of checksum."""
USER_SEED = b"SU"
"""How the seed of a user begins, in base32."""


class BadCredentials(ValueError):
    """A file of the settings cannot be used; the text says which, and why."""


def servers(settings: Settings) -> list[str]:
    """Give the URLs of ``nats_url``."""
    return [url.strip() for url in settings.nats_url.split(",")]


def wants_tls(settings: Settings) -> bool:
    """Say whether a connection without TLS is none.

    nats-py itself encrypts only when the server's INFO asks for it, which a man in the middle can
    write. So whoever names TLS in any way gets it, or no connection.
    """
    named = settings.nats_tls_required or settings.nats_tls_ca or settings.nats_tls_cert
    return bool(named) or any(url.startswith("tls://") for url in servers(settings))


def credentials(settings: Settings) -> dict[str, Any]:
    """Give nats-py's options for authentication and TLS; raises :class:`BadCredentials`."""
    options: dict[str, Any] = {}
    if path := settings.nats_creds:
        _read_creds(path)
        # Callbacks, which read the file again at each connect: it may have been renewed.
        options["user_jwt_cb"] = lambda: bytearray(_read_creds(path)[0])
        options["signature_cb"] = partial(_sign, path)
    if settings.nats_nkey_file:
        _check_seed("nats_nkey_file", _read("nats_nkey_file", settings.nats_nkey_file).strip())
        options["nkeys_seed"] = str(settings.nats_nkey_file)
    if settings.nats_user and settings.nats_password_file:
        options["user"] = settings.nats_user
        options["password"] = _read_secret("nats_password_file", settings.nats_password_file)
    if settings.nats_token_file:
        options["token"] = _read_secret("nats_token_file", settings.nats_token_file)
    if not options:
        options = _from_urls(settings)
    if settings.nats_inbox_prefix:
        options["inbox_prefix"] = settings.nats_inbox_prefix
    if wants_tls(settings):
        options["tls"] = _tls_context(settings)
        options["tls_handshake_first"] = settings.nats_tls_required
    return options


def _from_urls(settings: Settings) -> dict[str, Any]:
    """Give what all URLs say of who we are, if they agree.

    nats-py would show it to the servers of the URLs alone, not to those of their cluster that it
    finds by itself, and to which it moves.
    """
    urls = [url if "://" in url else f"nats://{url}" for url in servers(settings)]
    found = {(each.username, each.password) for each in map(urlsplit, urls)}
    [(user, password), *others] = found
    if others or user is None:
        return {}
    return {"token": user} if password is None else {"user": user, "password": password}


def _tls_context(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.nats_tls_ca)
    except (OSError, ValueError):
        raise BadCredentials("nats_tls_ca: no certificates can be read from it") from None
    if settings.nats_tls_cert:
        try:
            context.load_cert_chain(settings.nats_tls_cert, settings.nats_tls_key)
        except (OSError, ValueError):
            raise BadCredentials(
                "nats_tls_cert and nats_tls_key: not a certificate and its key"
            ) from None
    return context


def _read(name: str, path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadCredentials(f"{name}: cannot be read ({type(error).__name__})") from None
    if not content.strip():
        raise BadCredentials(f"{name}: the file is empty")
    return content


def _read_secret(name: str, path: Path) -> str:
    try:
        return _read(name, path).decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise BadCredentials(f"{name}: not UTF-8") from None


def _read_creds(path: Path) -> tuple[bytes, bytes]:
    """Give the user's JWT and seed."""
    lines = [line.strip() for line in _read("nats_creds", path).splitlines()]
    token, seed = _section(lines, b"NATS USER JWT"), _section(lines, b"USER NKEY SEED")
    key = _check_seed("nats_creds", seed)
    if _subject_of(token) != key:
        raise BadCredentials("nats_creds: the JWT is broken, or another user's than the seed")
    return token, seed


def _section(lines: list[bytes], name: bytes) -> bytes:
    """Give the one line between the BEGIN and the END of ``name``."""
    for begin, content, end in zip(lines, lines[1:], lines[2:], strict=False):
        if b"BEGIN " + name in begin and content and b"END " + name in end:
            return content
    raise BadCredentials(f"nats_creds: no {name.decode()} in it, or it is cut short")


def _subject_of(token: bytes) -> bytes | None:
    """Give the user whose JWT this is; None when it is not one."""
    try:
        _, claims, signature = (
            base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)) for part in token.split(b".")
        )
        subject = json.loads(claims)["sub"].encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return subject if len(signature) == 64 else None  # noqa: PLR2004 - of ed25519


def _check_seed(name: str, seed: bytes) -> bytes:
    """Give the public key of a user's seed. nkeys itself looks at no checksum."""
    try:
        raw = base64.b32decode(seed + b"=" * (-len(seed) % 8))
    except ValueError:
        raw = b""
    checksum = binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little")
    if not seed.startswith(USER_SEED) or len(raw) != SEED_BYTES or raw[-2:] != checksum:
        raise BadCredentials(f"{name}: not a user's nkey seed, or it is cut short")
    public: bytes = nkeys.from_seed(bytearray(seed)).public_key
    return public


def _sign(path: Path, nonce: str) -> bytes:
    key = nkeys.from_seed(bytearray(_read_creds(path)[1]))
    return base64.b64encode(key.sign(nonce.encode()))
