"""The serving process talks to NATS and to nothing else (INV-5)."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
from actors import ask, decision, patched, run_actor

from actor.bus.embedded import EmbeddedServer

WATCH = """
import os, sys
allowed = int(os.environ["SEMIF_NATS_URL"].rsplit(":", 1)[1])
report = open(os.environ["TEST_REPORT"], "a", buffering=1)
def watch(event, arguments):
    if event == "socket.getaddrinfo" and arguments[0] not in ("127.0.0.1", None):
        print("lookup", arguments[0], file=report)
        raise OSError("blocked by the test")
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        if isinstance(address, tuple) and address[:2] == ("127.0.0.1", allowed):
            print("nats", file=report)
        else:
            print("other", address, file=report)
            raise OSError("blocked by the test")
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        print("program", arguments[0], file=report)
sys.addaudithook(watch)
"""
"""Sees every connection that Python code makes; what native code would make shows in psutil."""


async def test_the_only_connection_is_to_nats(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """Blocked and counted from the interpreter's start to the drain: NATS, and nothing else."""
    report = tmp_path / "connections"
    # A machine that has these set for its users must not make the actor reach a hub either.
    settings = patched(tmp_path / "patch", WATCH) | {
        "TEST_REPORT": str(report),
        "HF_HUB_OFFLINE": "0",
        "TRANSFORMERS_OFFLINE": "0",
    }
    async with run_actor(server, tiny_llama, tmp_path, settings=settings) as actor:
        await actor.until("ready")
        assert json.loads((await ask(actor.client, decision())).data)["choice"]
        sockets = psutil.Process(actor.process.pid).net_connections(kind="inet")
        assert await actor.stop() == 0, actor.log_text()

    port = int(server.url.rsplit(":", 1)[1])
    assert [(s.raddr.ip, s.raddr.port) for s in sockets] == [("127.0.0.1", port)]
    lines = set(report.read_text(encoding="utf-8").splitlines())
    # uvloop connects without Python's socket module, so "nats" need not be among them.
    assert lines <= {"nats"}
