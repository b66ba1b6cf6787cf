"""The Containerfile, as far as it can be checked without a container engine.

Read by BuildKit's own parser, which the package ``dockerfile`` binds.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import dockerfile  # type: ignore[import-not-found]  # ships no types
import pytest

from actor.cli.app import app
from actor.settings import Settings

ROOT = Path(__file__).parents[2]
FILE = ROOT / "Containerfile"
COMMANDS: tuple[dockerfile.Command, ...] = dockerfile.parse_file(str(FILE))
KNOWN = re.compile(
    r"ADD|ARG|CMD|COPY|ENTRYPOINT|ENV|EXPOSE|FROM|HEALTHCHECK|LABEL|RUN|SHELL|STOPSIGNAL|USER"
    r"|VOLUME|WORKDIR"
)
WEIGHTS = re.compile(r"\.(safetensors|gguf|bin|pt|pth|ckpt)$")


def stages() -> list[list[dockerfile.Command]]:
    """Give the commands of each stage, its FROM first."""
    found: list[list[dockerfile.Command]] = []
    for command in COMMANDS:
        if command.cmd.upper() == "FROM":
            found.append([])
        if found:
            found[-1].append(command)
    return found


def named(stage: list[dockerfile.Command], name: str) -> list[dockerfile.Command]:
    """Give the commands of one kind."""
    return [command for command in stage if command.cmd.upper() == name]


def sources() -> list[str]:
    """Give what is copied out of the source tree, in all stages."""
    return [
        source
        for command in COMMANDS
        if command.cmd.upper() == "COPY" and not any("--from" in flag for flag in command.flags)
        for source in command.value[:-1]
    ]


BUILD, FINAL = stages()[0], stages()[-1]


def test_every_instruction_is_known() -> None:
    """No typo: the parser takes any word for an instruction, an engine does not."""
    assert [command.cmd for command in COMMANDS if not KNOWN.fullmatch(command.cmd)] == []


def test_two_stages_share_one_base_that_can_be_pinned() -> None:
    """The virtual environment moves between equal Pythons, and one argument pins both."""
    first = COMMANDS[0]
    assert (first.cmd.upper(), first.value[0].partition("=")[0]) == ("ARG", "BASE")
    assert len(stages()) == 2
    assert [stage[0].value[0] for stage in stages()] == ["${BASE}", "${BASE}"]


def test_base_is_a_python_that_the_package_supports() -> None:
    """The tag is exact to the minor version, and not older than ``requires-python``."""
    match = re.fullmatch(r"BASE=python:(\d+)\.(\d+)-slim-\w+", COMMANDS[0].value[0])
    assert match
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = tuple(int(part) for part in re.findall(r"\d+", project["requires-python"]))
    assert (int(match[1]), int(match[2])) >= oldest


def test_nothing_is_fetched_but_by_pip() -> None:
    """ADD unpacks and downloads; COPY does neither."""
    assert not [command for command in COMMANDS if command.cmd.upper() == "ADD"]
    assert not re.search(r"\b(curl|wget|git clone)\b|https?://", FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("source", sources())
def test_every_copied_source_exists(source: str) -> None:
    """A build does not stop at a file that was moved, and no path leaves the tree."""
    path = (ROOT / source).resolve()
    assert path.exists()
    assert path.is_relative_to(ROOT)
    assert path != ROOT, "COPY . would take everything that lies about"


def test_no_weights_are_copied() -> None:
    """What is copied holds no weights, no cache and no virtual environment."""
    for source in sources():
        path = ROOT / source
        for file in [path, *path.rglob("*")]:
            parts = file.relative_to(ROOT).parts
            assert not {".cache", ".venv", "model"} & set(parts), file
            assert not WEIGHTS.search(file.name), file


def test_ignore_file_lets_exactly_the_copied_sources_through() -> None:
    """Everything is shut out first, then each source is let in."""
    lines = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    allowed = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    assert allowed == {source.removeprefix("./") for source in sources()}


def test_install_is_pinned_and_without_extras() -> None:
    """The constraints file is copied and used; demo and dev dependencies stay out."""
    installs = [
        command.value[0]
        for command in named(BUILD, "RUN")
        if re.search(r"\bpip install\b", command.value[0])
    ]
    assert len(installs) == 1
    assert re.search(r"--constraint constraints\.txt \.(\s|$)", installs[0])
    assert "constraints.txt" in sources()
    assert not re.search(r"\[\w+\]", installs[0])


def test_copied_sources_are_enough_to_build_the_package(tmp_path: Path) -> None:
    """From the copied files alone comes a wheel with both packages and the command."""
    for source in sources():
        path = ROOT / source
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, tmp_path / source, ignore=ignored)
        else:
            shutil.copy(path, tmp_path / source)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"],
        cwd=tmp_path,
        check=True,
        timeout=60,
        capture_output=True,
    )
    [wheel] = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [entry_points] = [name for name in names if name.endswith("/entry_points.txt")]
        assert "semif-actor = actor.cli.app:main" in archive.read(entry_points).decode()
    expected = {f"{package}/__init__.py" for package in ("actor", "schemas")}
    assert expected <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "actor",
        "schemas",
        "semif_actor",
    }


def test_runs_as_a_fixed_user_that_is_not_root() -> None:
    """The last USER before the entry point is a number above the system's, made in this stage."""
    order = [command.cmd.upper() for command in FINAL]
    [user] = named(FINAL, "USER")
    assert order.index("USER") < order.index("ENTRYPOINT")
    uid, _, gid = user.value[0].partition(":")
    assert min(int(uid), int(gid)) >= 1000
    [made] = [run for run in named(FINAL, "RUN") if "useradd" in run.value[0]]
    assert f"--uid {uid} --gid {gid} " in made.value[0]
    copies = [flag for copy in named(FINAL, "COPY") for flag in copy.flags]
    assert not [flag for flag in copies if flag.startswith("--chown")], "its code is not its own"


def test_starts_the_actor_directly() -> None:
    """Exec form: signals reach the actor, not a shell; what is started exists."""
    [entry], [command], [signal] = (
        named(FINAL, name) for name in ("ENTRYPOINT", "CMD", "STOPSIGNAL")
    )
    assert entry.json
    assert command.json
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert entry.value[0] in project["scripts"]
    commands = {each.callback.__name__ for each in app.registered_commands if each.callback}
    assert command.value == ("run",)
    assert {"run", "ping"} <= commands
    assert signal.value == ("SIGTERM",)


def test_health_check_asks_for_this_actor() -> None:
    """It pings by name and fails without one, since any actor would satisfy a nameless ping."""
    [check] = named(FINAL, "HEALTHCHECK")
    assert check.value == ("CMD", 'semif-actor ping --instance "${SEMIF_INSTANCE:?}"')
    assert not check.json, "the shell form is what fails when the variable is not set"


def test_health_check_waits_longer_than_ping() -> None:
    """An engine does not cut off a ping that would still have heard the heartbeat."""
    [check] = named(FINAL, "HEALTHCHECK")
    options = dict(flag.removeprefix("--").split("=") for flag in check.flags)
    assert int(options["timeout"].removesuffix("s")) > 3 * Settings().heartbeat_s


def test_model_comes_from_outside_and_no_hub_is_asked() -> None:
    """The model's place is set, nothing makes an empty volume there, and hubs are off."""
    [env] = named(FINAL, "ENV")
    pairs = dict(zip(env.value[::2], env.value[1::2], strict=True))
    assert pairs["SEMIF_MODEL"] == "/model"
    assert pairs["HF_HUB_OFFLINE"] == "1"
    assert not named(FINAL, "VOLUME")
