"""The commands, run as a person or a probe runs them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from actors import decision, run_actor
from nats.aio.msg import Msg
from rich.cells import cell_len

from actor.bus.embedded import EmbeddedServer
from schemas.codec import codec_for
from schemas.examples import EXAMPLES
from schemas.health import Heartbeat


def environment(**settings: str) -> dict[str, str]:
    """Give an environment with no SEMIF_ settings but these."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")}
    return kept | settings | {"COLUMNS": "200"}


def semif_actor(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "actor", *arguments],
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def in_background(*arguments: str, **settings: str) -> tuple[int, str]:
    """Run a command beside the event loop."""
    done = await asyncio.to_thread(semif_actor, *arguments, **settings)
    return done.returncode, done.stdout + done.stderr


def test_help_lists_the_commands() -> None:
    """A person who types nothing but the name learns what there is."""
    done = semif_actor("--help")

    assert done.returncode == 0
    for command in ("run", "demo", "score", "ping", "config", "schema", "model"):
        assert command in done.stdout


def test_version_is_the_packages() -> None:
    """The version asked for is the distribution's."""
    from importlib.metadata import version

    assert semif_actor("--version").stdout.strip() == version("semif-actor")


def test_config_shows_values_and_where_they_came_from(tmp_path: Path) -> None:
    """File, environment and default are told apart, and the environment wins."""
    file = tmp_path / "actor.toml"
    file.write_text('max_tokens = 1024\nqueue_group = "file"\n', encoding="utf-8")

    done = semif_actor("config", "--config", str(file), SEMIF_QUEUE_GROUP="environment")

    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert lines["queue_group"] == ["environment", "SEMIF_QUEUE_GROUP"]
    assert lines["max_tokens"] == ["1024", str(file)]
    assert lines["drain_s"] == ["30.0", "default"]


def test_config_hides_a_password_in_a_url() -> None:
    """What is shown can be pasted into a ticket."""
    done = semif_actor("config", SEMIF_NATS_URL="nats://me:hunter2@host:4222,nats://o:p@b:1")

    assert "hunter2" not in done.stdout
    assert "nats://me:***@host:4222,nats://o:***@b:1" in done.stdout


def test_an_unknown_setting_ends_every_command_with_2() -> None:
    """A typo never leaves a limit at its default."""
    done = semif_actor("config", SEMIF_MAX_TOKEN="1")  # noqa: S106 - no password

    assert done.returncode == 2
    assert "SEMIF_MAX_TOKEN is not a setting" in done.stdout


def test_run_without_a_model_ends_with_2() -> None:
    """The message says what makes a model directory."""
    done = semif_actor("run")

    assert done.returncode == 2
    assert "model import" in done.stdout


@pytest.mark.parametrize("arguments", [["config"], ["run"], ["ping"]], ids=str)
def test_a_broken_url_ends_every_command_with_2(arguments: list[str]) -> None:
    """Before anything is tried, and without a word of the URL."""
    done = semif_actor(*arguments, SEMIF_NATS_URL="nats://user:sekret@host:b:c")

    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("settings: nats_url: server 1 of 1 is not ")
    assert "sekret" not in done.stdout


@pytest.mark.parametrize("url", ["nats://user:sekret@host:b:c", "http://x", "", ","])
def test_a_broken_server_option_ends_a_command_with_2(url: str) -> None:
    """The option is checked as the setting is."""
    done = semif_actor("ping", "--server", url)

    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("--server: server 1 of ")
    assert "sekret" not in done.stdout


def test_schema_writes_and_checks(tmp_path: Path) -> None:
    """What is written passes the check; a change does not."""
    assert semif_actor("schema", str(tmp_path)).returncode == 0
    assert semif_actor("schema", str(tmp_path), "--check").returncode == 0

    (tmp_path / "heartbeat.json").write_text("{}", encoding="utf-8")

    done = semif_actor("schema", str(tmp_path), "--check")
    assert done.returncode == 1
    assert "heartbeat.json" in done.stdout


@pytest.mark.parametrize("place", ["/proc/x", "/dev/null", "/dev/null/x", "x" * 300])
def test_a_target_that_cannot_be_made_is_one_line(place: str, tiny_llama: Path) -> None:
    """For the contract and for a model: where, why, and what to do."""
    revision = ("--revision", "c" * 40)
    for done in (
        semif_actor("schema", place),
        semif_actor("model", "import", str(tiny_llama), f"{place}/y", *revision),
    ):
        assert (done.returncode, done.stderr) == (1, "")
        [line] = done.stdout.splitlines()
        assert place in line
        assert line.endswith(". Name a place that can be read and written.")


def test_model_import_says_why_it_refuses(tmp_path: Path) -> None:
    """A source that is nothing importable is named; nothing is left behind."""
    (tmp_path / "x.bin").write_bytes(b"pickle")

    done = semif_actor("model", "import", str(tmp_path / "x.bin"), str(tmp_path / "out"))

    assert done.returncode == 1
    assert "nothing to import" in done.stdout
    assert not (tmp_path / "out").exists()


def test_model_import_makes_a_directory_that_loads(tiny_llama: Path, tmp_path: Path) -> None:
    """A Hugging Face directory becomes a checked one."""
    commit = "c" * 40

    done = semif_actor(
        *("model", "import", str(tiny_llama), str(tmp_path / "out"), "--revision", commit)
    )

    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stdout
    assert manifest["revision"] == commit


def test_score_without_a_server_says_so() -> None:
    """No server: one line and exit code 1, no traceback."""
    done = semif_actor(
        *("score", "--server", "nats://127.0.0.1:1", "--state", "x", "--question", "q"),
        *("--option", "a=A", "--option", "b=B"),
    )

    assert done.returncode == 1
    assert "no connection to NATS" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


async def test_score_without_an_actor_says_so(server: EmbeddedServer) -> None:
    """A server on which nobody serves: no responders, exit code 1."""
    code, output = await in_background(
        *("score", "--server", server.url, "--state", "x", "--question", "q"),
        *("--option", "a=A", "--option", "b=B"),
    )

    assert code == 1
    assert "no actor is ready" in output


@pytest.mark.parametrize("option", ["a", "", "=x"])
def test_score_explains_a_bad_option(option: str) -> None:
    """An option is ID=DESCRIPTION; what cannot be one is refused before anything is sent."""
    done = semif_actor(
        *("score", "--server", "nats://127.0.0.1:1", "--state", "x", "--question", "q"),
        *("--option", option, "--option", "b=B"),
    )

    assert done.returncode == 2
    assert "ID=DESCRIPTION" in done.stdout


async def test_score_prints_answers_errors_and_json(
    server: EmbeddedServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """One decision from options, from a file and from standard input; several over one state."""
    single, shared = tmp_path / "single.json", tmp_path / "shared.json"
    single.write_text(json.dumps(decision()), encoding="utf-8")
    question: dict[str, Any] = {k: v for k, v in decision().items() if k != "state"}
    bad = question | {"id": "bad", "options": []}
    shared.write_text(
        json.dumps({"state": {"a": 1}, "decisions": [question, bad]}), encoding="utf-8"
    )
    async with run_actor(server, tiny_llama, tmp_path) as actor:
        await actor.until("ready")
        options = ("--option", "yes=Happy", "--option", "no=Unhappy", "--server", server.url)
        asked = ("--state", '{"text": "late"}', "--question", "Happy?")

        code, output = await in_background("score", *asked, *options)
        assert code == 0, output
        assert "margin" in output
        assert "%" in output

        code, output = await in_background("score", str(single), "--json", *options[-2:])
        assert code == 0
        assert json.loads(output)["option_ids"] == ["yes", "no"]

        code, output = await in_background("score", str(shared), *options[-2:])
        assert code == 0
        assert "decisions[0]:" in output
        assert "422 invalid" in output

        code, output = await in_background("score", *asked, *options[2:])
        assert code == 1
        assert "422 invalid" in output


async def test_ping_tells_ready_from_everything_else(server: EmbeddedServer) -> None:
    """Exit 0 for a ready actor; 1 for a proving one, for another instance, and for silence."""
    ready = EXAMPLES["heartbeat"][""]
    assert isinstance(ready, Heartbeat)
    client = await nats.connect(server.url)
    beating = asyncio.Event()

    async def beat(state: str) -> None:
        beating.clear()
        record = msgspec.structs.replace(ready, state=state)
        while not beating.is_set():
            await client.publish("semif.v1.health.gpu-1", codec_for(None).encode(record))
            try:
                async with asyncio.timeout(0.1):
                    await beating.wait()
            except TimeoutError:
                continue

    async def ping(state: str, *arguments: str) -> tuple[int, str]:
        task = asyncio.create_task(beat(state))
        result = await in_background("ping", "--server", server.url, *arguments)
        beating.set()
        await task
        return result

    code, output = await ping("ready")
    assert (code, "state=ready" in output) == (0, True)
    assert (await ping("ready", "--instance", "gpu-1"))[0] == 0
    assert (await ping("proving"))[0] == 1
    assert (await ping("failed"))[0] == 1
    code, output = await ping("ready", "--instance", "other", "--timeout-s", "0.5")
    assert (code, "no heartbeat of other" in output) == (1, True)
    await client.close()


@pytest.mark.parametrize(
    "instance",
    ["a b", "a..b", "a.b", "a\n", "\n", ">", "", "**", "a*", "\u00e9", "x" * 129],
    ids=repr,
)
def test_ping_refuses_what_is_no_instance(instance: str) -> None:
    """As SEMIF_INSTANCE is: before it is part of a subject."""
    done = semif_actor("ping", "--instance", instance, "--server", "nats://127.0.0.1:1")

    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("--instance: must be 1 to 128 letters")


@pytest.mark.parametrize("instance", ["*", "gpu-1", "A_9", "x" * 128])
def test_ping_takes_what_is_an_instance(instance: str) -> None:
    """The good side of the rule, and every actor; there is only no server."""
    done = semif_actor("ping", "--instance", instance, "--server", "nats://127.0.0.1:1")

    assert "no connection to NATS" in done.stdout


async def test_garbage_on_the_bus_is_one_line(server: EmbeddedServer) -> None:
    """Somebody else publishes heartbeats and answers requests; no traceback, exit code 1."""
    client = await nats.connect(server.url)

    async def respond(message: Msg) -> None:
        await message.respond(b"\xff{")

    await client.subscribe("semif.v1.score", cb=respond)
    await client.flush()
    await client.flush()

    async def publish() -> None:
        while True:
            await client.publish("semif.v1.health.x", b"\xff{")
            await asyncio.sleep(0.05)

    publishing = asyncio.create_task(publish())
    ping = ("ping", "--timeout-s", "1", "--server", server.url)
    score = ("score", "--server", server.url, "--state", "x", "--question", "q", "--option", "a=A")
    for arguments in (ping, (*ping, "--instance", "x"), score, (*score, "--json")):
        code, output = await in_background(*arguments)
        assert (code, output.count("\n")) == (1, 1), output
        assert "cannot be read" in output
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)
    await client.close()


def test_ping_without_a_server_fails() -> None:
    """A probe of an actor whose bus is gone is a failed probe."""
    assert semif_actor("ping", "--server", "nats://127.0.0.1:1").returncode == 1


def test_demo_without_a_model_says_how_to_make_one(tmp_path: Path) -> None:
    """The message names the make target."""
    done = semif_actor("demo", "--model", str(tmp_path / "none"))

    assert done.returncode == 2
    assert "make demo-model" in done.stdout


def test_demo_answers_and_stops_cleanly(demo_model: Path) -> None:
    """A server, an actor, a dozen decisions, a drain, in 80 columns; it takes no settings."""
    done = subprocess.run(
        [sys.executable, "-m", "actor", "demo", "--model", str(demo_model)],
        env=environment(SEMIF_MAX_TOKEN="1") | {"COLUMNS": "80"},  # noqa: S106 - no password
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("state_prefix", "route a ticket", "422 invalid", "exit code 0", "at rest"):
        assert text in done.stdout
    assert max(map(cell_len, done.stdout.splitlines())) <= 80
