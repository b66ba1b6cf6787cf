"""What ``nats_url`` may hold: servers by commas that nats-py will take as they were meant.

nats-py looks at a URL only when it connects, retries one that can never work, and takes
``http://x`` for the host "http". So each is checked before anything starts.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from urllib.parse import urlsplit

__all__ = ["fault_of"]

FORM = "[nats://|tls://][USER:PASSWORD@|TOKEN@]HOST[:PORT]"

_SERVER = re.compile(
    r"""
    (?: (?P<scheme> nats | tls ) :// )?
    (?: [^/?\#\[\]]* @ )?
    (?: \[ (?P<ipv6> [0-9A-Fa-f:.]+ (?: % [\w.-]+ )? ) \] | (?P<name> [^\s/?\#\[\]@:]+ ) )
    (?: : [0-9]{0,5} )?
    /?
    """,
    re.VERBOSE,
)
_HOST = re.compile(rb"[A-Za-z0-9_.-]+")
_UNSAID = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""What ``urlsplit`` drops without a word, and what cannot be sent."""


def fault_of(urls: str) -> str | None:
    """Say what is wrong with ``urls``; None when they can be used.

    Never repeats a part of them, for any part may be of a password.
    """
    servers = [url.strip() for url in urls.split(",")]
    for number, server in enumerate(servers, 1):
        if not _is_usable(server):
            return (
                f"server {number} of {len(servers)} is not {FORM} with a PORT from 1 to 65535. A "
                "password that does not fit goes into SEMIF_NATS_USER and "
                "SEMIF_NATS_PASSWORD_FILE."
            )
    return None


def _is_usable(server: str) -> bool:
    """True for a server that can be used."""
    match = _SERVER.fullmatch(server)
    if match is None or _UNSAID.search(server):
        return False
    try:
        port = urlsplit(server if match["scheme"] else f"nats://{server}").port
        if match["ipv6"]:
            IPv6Address(match["ipv6"])
    except ValueError:
        return False
    return port != 0 and (match["ipv6"] is not None or _is_host(match["name"]))


def _is_host(name: str) -> bool:
    """True when ``name`` can be looked up: the resolver encodes it as IDNA."""
    try:
        encoded = name.encode("idna")
    except UnicodeError:
        return False
    # nats-py has its own meaning for "none": no host.
    return _HOST.fullmatch(encoded) is not None and name.lower() != "none"
