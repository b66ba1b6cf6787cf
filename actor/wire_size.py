"""How large a message is to the server."""

from __future__ import annotations

__all__ = ["wire_bytes"]


def wire_bytes(payload: bytes, headers: dict[str, str] | None) -> int:
    """Give the bytes that the server compares with its ``max_payload``: headers count."""
    if headers is None:
        return len(payload)
    text = "".join(headers) + "".join(headers.values())
    if "" not in headers and text.split() == [text]:
        # No blank anywhere, as in nearly all headers: nothing is stripped, and one look at them
        # together costs a fifth of one at each.
        return (
            len(b"NATS/1.0\r\n\r\n")
            + len(headers) * len(b": \r\n")
            + len(text.encode())
            + len(payload)
        )
    lines = sum(
        len(f"{key}: {text.strip()}\r\n".encode())
        for name, text in headers.items()
        if (key := name.strip())
    )
    return len(b"NATS/1.0\r\n") + lines + len(b"\r\n") + len(payload)
