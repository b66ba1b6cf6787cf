"""The demo's end: whatever stops it, nothing of it goes on running."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import nats
import psutil

START_TIMEOUT_S = 60.0


def running_with(folder: Path) -> list[str]:
    """Give the names of the processes whose temporary files go into ``folder``."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder):
                found.append(process.name())
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


async def test_a_demo_that_is_told_to_stop_leaves_no_process_behind(
    demo_model: Path, tmp_path: Path
) -> None:
    """SIGTERM ends its server and its actor too, with the code that a shell would give."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "actor", "demo", "--model", str(demo_model)),
        env=environment | {"PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            url = (await process.stdout.readline()).decode().split()[-1]
            client = await nats.connect(url, allow_reconnect=False)
            beats = await client.subscribe("semif.v1.health.demo")
            await beats.next_msg(timeout=START_TIMEOUT_S)  # the actor proves, for seconds to come
        assert len(running_with(tmp_path)) == 3
        await client.close()

        process.terminate()
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert process.returncode == 128 + 15, output
    assert b"Traceback" not in output
    assert running_with(tmp_path) == []
