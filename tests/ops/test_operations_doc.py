"""docs/operations.md is true: what it names is there to be seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
import typer

from actor.cli.app import app
from actor.life import State
from actor.service import Exit
from actor.settings import Settings
from schemas.errors import ERRORS
from schemas.health import BusHealth, Heartbeat, SourceHealth

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
MARKED = sorted(set(re.findall(r"`([^`]+)`", TEXT)))
QUOTED = sorted(set(re.findall(r'"([^"]+)"', TEXT)))
LETTERS_MIN = 5
"""Of a text of the code whose other parts are filled in: fewer would match anything."""

NOT_OURS = {"event", "handshake_first", "max_connections"}
"""The key of a log line's text, and settings of nats-server."""
SOURCES = {"jobs"}
PROOFS = {"bus"}
STATES = {state.name.lower() for state in State}
CODES = {error.code for error in ERRORS}
SETTINGS = {f"SEMIF_{field.name.upper()}" for field in msgspec.structs.fields(Settings)}


def texts_in_the_code() -> Iterator[str]:
    """Give a pattern for each text in actor/, with anything for what is filled in."""
    for path in ROOT.glob("actor/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.escape(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else None for p in node.values]
                fixed = "".join(part for part in parts if isinstance(part, str))
                if len(re.findall(r"\w", fixed)) >= LETTERS_MIN:
                    yield "".join(".*" if p is None else re.escape(str(p)) for p in parts)


@pytest.fixture(scope="module")
def known() -> re.Pattern[str]:
    """Give one pattern for all of them."""
    return re.compile("|".join(f"(?:{each})" for each in [*texts_in_the_code(), *STATES]))


@pytest.mark.parametrize("text", QUOTED)
def test_every_text_is_one_that_the_actor_writes(text: str, known: re.Pattern[str]) -> None:
    """Somebody searches for it at 3 a.m."""
    assert known.fullmatch(text), text


def found(kind: Any, path: list[str]) -> bool:
    """Tell whether a heartbeat has such a field."""
    kind = (
        next((each for each in get_args(kind) if each is not type(None)), kind)
        if (get_origin(kind) not in {dict, tuple})
        else kind
    )
    if not path:
        return True
    if get_origin(kind) is dict:  # any key
        return found(get_args(kind)[1], path[1:])
    hints = get_type_hints(kind) if isinstance(kind, type) else {}
    return path[0] in hints and found(hints[path[0]], path[1:])


@pytest.mark.parametrize("name", [each for each in MARKED if re.fullmatch(r"[a-z_0-9.]+", each)])
def test_every_name_is_a_field_a_code_or_a_state(name: str) -> None:
    """Fields of the heartbeat by their path, error codes, states, proofs, sources."""
    if name.startswith(("semif.v1.", ".")):
        return  # a subject, the ending of a file
    assert found(Heartbeat, name.split(".")) or name in (
        NOT_OURS | SOURCES | PROOFS | STATES | CODES
    )


@pytest.mark.parametrize("name", sorted(set(re.findall(r"SEMIF_[A-Z_]+", TEXT))))
def test_every_setting_exists(name: str) -> None:
    """A setting that the actor would refuse is named nowhere."""
    assert name in SETTINGS


@pytest.mark.parametrize("command", [each for each in MARKED if each.startswith("semif-actor ")])
def test_every_command_exists(command: str) -> None:
    """By its words, up to its first argument or option."""
    group: Any = typer.main.get_command(app)
    for word in command.split()[1:]:
        if not hasattr(group, "commands"):
            return
        assert word in group.commands
        group = group.commands[word]
    assert not hasattr(group, "commands"), "a group of commands does nothing by itself"


@pytest.mark.parametrize("path", [each for each in MARKED if re.match(r"(docs|ops|tests)/", each)])
def test_every_file_exists(path: str) -> None:
    """Where it sends people, there is something to read."""
    assert (ROOT / path).is_file()


def test_exit_codes_are_those_of_the_service() -> None:
    """Each of them is here, and no other."""
    assert {int(code) for code in re.findall(r"exit (?:code )?(\d)", TEXT)} == set(Exit)


def test_what_tells_of_trouble_is_explained() -> None:
    """Each figure of the bus and of a source that grows with a fault has its row."""
    calm = {"queue_group", "held", "deliveries"}
    bus = {f"bus.{field.name}" for field in msgspec.structs.fields(BusHealth)}
    source = {f"pipeline.sources.jobs.{f.name}" for f in msgspec.structs.fields(SourceHealth)}

    assert {each for each in bus | source if each.rpartition(".")[2] not in calm} <= set(MARKED)
    assert CODES - {"control_text"} <= set(MARKED)
