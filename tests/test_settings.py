"""Settings: every one bounded and explained, unknown ones refused, the environment first."""

from __future__ import annotations

import ast
import inspect
import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor import settings as module
from actor.settings import FIELDS, Settings, SettingsError, load, shown


def test_every_setting_is_explained_in_its_place() -> None:
    """A docstring stands under each field; it is what people read."""
    [record] = [
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef) and node.name == "Settings"
    ]
    explained = {
        field.target.id
        for field, below in itertools.pairwise(record.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
    }

    assert explained == set(FIELDS)


def test_the_defaults_are_within_their_own_bounds() -> None:
    """What msgspec would refuse from a file is no default either."""
    defaults, sources = load(environment={})

    again = msgspec.convert(
        {k: v for k, v in msgspec.to_builtins(defaults, enc_hook=str).items() if v is not None},
        Settings,
    )
    assert again == defaults
    assert set(sources.values()) == {"default"}


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    """And the sources say which was which."""
    file = tmp_path / "a.toml"
    file.write_text('max_tokens = 1000\ndrain_s = 5\nmodel = "/m"\n', encoding="utf-8")

    found, sources = load(file, {"SEMIF_MAX_TOKENS": "2000", "OTHER": "x"})

    assert (found.max_tokens, found.drain_s, found.model) == (2000, 5.0, Path("/m"))
    assert sources["max_tokens"] == "SEMIF_MAX_TOKENS"
    assert sources["drain_s"] == sources["model"] == str(file)


@pytest.mark.parametrize("name", FIELDS)
def test_each_setting_can_come_from_the_environment(name: str) -> None:
    """Its own default, written as text, is taken back unchanged."""
    default = getattr(load(environment={})[0], name)
    if default is None:
        return

    text = str(default).lower() if isinstance(default, bool) else str(default)

    found, sources = load(environment={f"SEMIF_{name.upper()}": text})
    assert getattr(found, name) == default
    assert sources[name] == f"SEMIF_{name.upper()}"


@given(name=st.sampled_from(FIELDS), value=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_taken_or_refused_never_worse(name: str, value: str) -> None:
    """A broken value ends in SettingsError, whatever it is."""
    try:
        found, _ = load(environment={f"SEMIF_{name.upper()}": value})
    except SettingsError:
        return
    assert isinstance(found, Settings)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"SEMIF_MAX_TOKEN": "1"}, "SEMIF_MAX_TOKEN is not a setting"),
        ({"SEMIF_SCORER": "fast"}, "scorer"),
        ({"SEMIF_MAX_TOKENS": "0"}, "max_tokens"),
        ({"SEMIF_MAX_TOKENS": "many"}, "max_tokens"),
        ({"SEMIF_DEVICE": "gpu"}, "device"),
        ({"SEMIF_INSTANCE": "a.b"}, "instance"),
        ({"SEMIF_SUBJECT_PREFIX": "a..b"}, "subject_prefix"),
        ({"SEMIF_SUBJECT_PREFIX": "a.*"}, "subject_prefix"),
        ({"SEMIF_HEARTBEAT_S": "0"}, "heartbeat_s"),
        ({"SEMIF_DRAIN_S": "nan"}, "drain_s"),
        ({"SEMIF_VRAM_CAP_GIB": "4", "SEMIF_DEVICE": "cpu"}, "no effect on cpu"),
        ({"SEMIF_MAX_TOKENS": "4096", "SEMIF_BATCH_TOKENS_MAX": "4095"}, "no room for one"),
        ({"SEMIF_NATS_USER": "u"}, "go together"),
        ({"SEMIF_NATS_CREDS": "/nowhere/at/all"}, "cannot be read"),
        ({"SEMIF_MODEL": ""}, "model"),
    ],
)
def test_what_cannot_be_used_is_named(environment: dict[str, str], text: str) -> None:
    """The message holds the setting's name, or what to do about it."""
    with pytest.raises(SettingsError, match=text):
        load(environment=environment)


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"max_token = 1", "max_token"), (b"x = ", "a.toml"), (b"\xff", "a.toml")],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, text: str) -> None:
    """An unknown key, a broken file, a file that is no text."""
    file = tmp_path / "a.toml"
    file.write_bytes(content)

    with pytest.raises(SettingsError, match=text):
        load(file, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that was asked for and is not there is a mistake, not a default."""
    with pytest.raises(SettingsError, match=r"none\.toml"):
        load(tmp_path / "none.toml", {})


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("nats://u:secret@a:1", "nats://u:***@a:1"),
        ("nats://u:p@ss@a:1", "nats://u:***@a:1"),
        ("nats://token@a:1", "nats://***@a:1"),
        ("nats://u:x@a:1,tls://v:y@b:2", "nats://u:***@a:1,tls://v:***@b:2"),
        ("nats://a:1", "nats://a:1"),
    ],
)
def test_secrets_in_a_url_are_not_shown(url: str, text: str) -> None:
    """A password, a token, in any of several servers."""
    assert shown("nats_url", url) == text
