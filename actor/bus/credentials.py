"""How a connection proves who it is, and what it asks of the server in return."""

from __future__ import annotations

import ssl
from typing import Any

from actor.settings import Settings

__all__ = ["credentials", "servers"]


def servers(settings: Settings) -> list[str]:
    """Give the URLs of ``nats_url``."""
    return [url.strip() for url in settings.nats_url.split(",")]


def credentials(settings: Settings) -> dict[str, Any]:
    """Give nats-py's options for authentication and TLS; raises ``OSError`` and ``ValueError``.

    ``tls_handshake_first`` is what makes TLS mandatory: without it nats-py follows the server's
    INFO, which a man in the middle can write.
    """
    options: dict[str, Any] = {}
    if settings.nats_creds:
        options["user_credentials"] = str(settings.nats_creds)
    if settings.nats_nkey_file:
        options["nkeys_seed"] = str(settings.nats_nkey_file)
    if settings.nats_user and settings.nats_password_file:
        options["user"] = settings.nats_user
        password = settings.nats_password_file.read_text(encoding="utf-8")
        options["password"] = password.removesuffix("\n")
    if settings.nats_tls_required or settings.nats_tls_ca or settings.nats_tls_cert:
        context = ssl.create_default_context(cafile=settings.nats_tls_ca)
        if settings.nats_tls_cert:
            context.load_cert_chain(settings.nats_tls_cert, settings.nats_tls_key)
        options["tls"] = context
        options["tls_handshake_first"] = settings.nats_tls_required
    return options
