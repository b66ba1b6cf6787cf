"""The settings named in the operations files exist, and the example says what they default to."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from actor.settings import ENVIRONMENT_PREFIX, FILE_SETTINGS, Settings, load

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "ops" / "actor.env.example"
NAMING = [
    *sorted(ROOT.glob("ops/*.example")),
    *sorted(ROOT.glob("ops/*.service")),
    ROOT / "ops" / "README.md",
    ROOT / "Containerfile",
]
FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}
LINE = re.compile(r"^(#?)SEMIF_([A-Z_]+)=(.*)$", re.MULTILINE)


def example_lines() -> list[tuple[bool, str, str]]:
    """Give (commented out, setting, value) of each line of the example that sets something."""
    found = LINE.findall(EXAMPLE.read_text(encoding="utf-8"))
    return [(mark == "#", name.lower(), value) for mark, name, value in found]


@pytest.mark.parametrize("file", NAMING, ids=lambda file: file.name)
def test_every_named_setting_exists(file: Path) -> None:
    """A SEMIF_ name that the actor would refuse is written nowhere."""
    text = file.read_text(encoding="utf-8")
    names = {name.lower() for name in re.findall(r"(?<!=)\bSEMIF_([A-Z][A-Z_]*[A-Z])\b", text)}
    assert names, f"{file.name} names no setting: the pattern no longer matches"
    assert names <= FIELDS.keys()


def test_example_shows_every_setting_once() -> None:
    """A new setting is documented, and none is set in two places."""
    names = [name for _, name, _ in example_lines()]
    assert sorted(names) == sorted(FIELDS)


def test_example_is_accepted_whole(tmp_path: Path) -> None:
    """Every value of the example, those commented out included, is one that the actor takes."""
    readable = tmp_path / "readable"
    readable.touch()
    environment = {
        ENVIRONMENT_PREFIX + name.upper(): str(readable) if name in FILE_SETTINGS else value
        for _, name, value in example_lines()
    }
    _, sources = load(None, environment)
    assert set(sources.values()) == set(environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for off, name, value in example_lines()
        if off and FIELDS[name].default not in {None, msgspec.NODEFAULT}
    ],
)
def test_commented_value_is_the_default(name: str, value: str) -> None:
    """A line that is commented out does not promise another value than the one in effect."""
    settings, _ = load(None, {ENVIRONMENT_PREFIX + name.upper(): value})
    assert getattr(settings, name) == FIELDS[name].default


def test_values_mean_the_same_to_systemd_and_containers() -> None:
    """No quotes and no trailing comment: systemd strips them, ``--env-file`` keeps them."""
    for _, name, value in example_lines():
        assert not re.search(r"[\"'\\#\s]", value), name
