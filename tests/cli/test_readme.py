"""The example of the README's "Behind your events" runs as it is printed."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import nats
import pytest
from in_process import actor_in_process
from nats.aio.client import Client
from streams import jetstream_server

from actor.settings import Settings, load

ROOT = Path(__file__).parents[2]
WAIT_S = 20.0


def blocks() -> list[str]:
    """Give what stands between the fences of the section, in order."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split("## Behind your events")[1].split("\n## ")[0]
    return re.findall(r"```(?:toml)?\n(.*?)```", section, re.DOTALL)


async def shell(folder: Path, commands: str) -> str:
    """Run the commands in a folder that has the virtual environment where the README has it."""
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-e", "-c", commands],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout


async def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    """The file is right, an event is tried with a decision, and an actor routes it."""
    rules, tried, started, used = blocks()
    (tmp_path / "tickets.toml").write_text(rules, encoding="utf-8")
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    with jetstream_server(tmp_path / "js") as server:
        client = await nats.connect(server.url)
        serving = Settings(nats_url=server.url, instance="other")
        async with actor_in_process(serving, client):
            said = await shell(tmp_path, tried.replace("URL", server.url))
        # An engine that finds both teams equally likely is not sure.
        assert "published: tickets.sorted.people" in said

        export, apply, run = started.replace("=URL", f"={server.url}").strip().splitlines()
        said = await shell(tmp_path, f"{export}\n{apply}")
        assert "SEMIF_DEAD" in said
        assert run == ".venv/bin/semif-actor run"
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            environment = dict(word.split("=", 1) for word in shlex.split(export)[1:])
            settings, _ = load(None, environment)
            settings = msgspec.structs.replace(settings, instance="readme")
            async with actor_in_process(settings, client):
                got = await route(client, tmp_path, used)
        await client.close()

    assert got == ("tickets.sorted.people", (tmp_path / "ticket.json").read_bytes().strip())


async def route(client: Client, folder: Path, used: str) -> tuple[str, bytes]:
    """Do what the two ``nats`` commands do."""
    sub, pub = (shlex.split(line) for line in used.strip().splitlines())
    assert sub[:4] == ["nats", "--server", "URL", "sub"]
    assert pub[:4] == ["nats", "--server", "URL", "pub"]
    assert pub[5] == "$(cat ticket.json)"
    subscription = await client.subscribe(sub[4])
    await client.publish(pub[4], (folder / "ticket.json").read_bytes().strip())
    message = await subscription.next_msg(timeout=WAIT_S)
    return message.subject, message.data
