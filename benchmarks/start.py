"""The start of an actor and its memory at rest: `make bench`.

Three starts on the model directory given, with default settings on the CPU, each in a process of
its own against a real nats-server. Prints the seconds of each proof and their share of the start.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from actor.bus.client import open_client
from actor.bus.embedded import embedded_server
from actor.settings import Settings
from schemas.health import Heartbeat

RUNS = 3
START_TIMEOUT_S = 300.0


async def start_once(model: Path) -> tuple[float, Heartbeat]:
    """Give the seconds from the start of the process to READY, and the heartbeat that says so."""
    with tempfile.TemporaryDirectory() as scratch, embedded_server(Path(scratch)) as server:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")} | {
            "SEMIF_NATS_URL": server.url,
            "SEMIF_MODEL": str(model),
            "SEMIF_DEVICE": "cpu",
            "SEMIF_INSTANCE": "bench",
            "SEMIF_LOG_LEVEL": "error",
        }
        async with open_client(Settings(nats_url=server.url), "bench") as client:
            started = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "actor", "run"), env=environment
            )
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    async for heartbeat in client.heartbeats("bench"):
                        if heartbeat.state == "ready":
                            return time.monotonic() - started, heartbeat
                        if heartbeat.state == "failed":
                            raise SystemExit(f"the start failed: {heartbeat.reason}")
            finally:
                process.terminate()
                await process.wait()
    raise SystemExit("the heartbeats ended")


def main() -> None:
    """Run and print."""
    results = [asyncio.run(start_once(Path(sys.argv[1]))) for _ in range(RUNS)]
    seconds = [total for total, _ in results]
    median = statistics.median(seconds)
    print(f"start to READY: median {median:.1f} s of {', '.join(f'{s:.1f}' for s in seconds)}")
    heartbeat = results[-1][1]
    for proof in heartbeat.proofs:
        share = proof.seconds / seconds[-1]
        print(f"  {proof.name:14} {proof.seconds:7.2f} s {share:6.1%}  {proof.detail}")
    if heartbeat.engine:
        print(f"at rest: {heartbeat.engine.memory_resting_bytes / 2**30:.2f} GiB resident")


if __name__ == "__main__":
    main()
