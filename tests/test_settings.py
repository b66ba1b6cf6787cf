"""Settings: every one bounded and explained, unknown ones refused, the environment first."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
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


TEXTS = st.one_of(
    st.text(st.characters()),  # lone surrogates too: what bytes that are no UTF-8 become
    st.sampled_from(["\0", "/a\0b", "\ud800", "\udcff", "x" * 5000, "9" * 5000, "inf", "nan", "."]),
    st.integers().map(str),
    st.floats().map(str),
)


@pytest.mark.parametrize("name", FIELDS)
@settings(max_examples=40)
@given(value=TEXTS)
def test_any_text_is_taken_or_refused_never_worse(name: str, value: str) -> None:
    """A broken value ends in SettingsError, whatever it is."""
    try:
        found, _ = load(environment={f"SEMIF_{name.upper()}": value})
    except SettingsError:
        return
    assert isinstance(found, Settings)


TOML_VALUES = ["''", "'x'", '"\\u0000"', "0", "-1", "9" * 30, "9" * 5000, "1e999", "nan", "inf"]
TOML_VALUES += ["true", "[]", "{}", "['a']", "1979-05-27", "07:32:00", "[" * 20_000]


@pytest.mark.parametrize("name", FIELDS)
def test_any_value_of_a_file_is_taken_or_refused_never_worse(name: str, tmp_path: Path) -> None:
    """Every kind of value that TOML has, and some that it has not."""
    file = tmp_path / "a.toml"
    for value in TOML_VALUES:
        file.write_text(f"{name} = {value}", encoding="utf-8")
        try:
            found, _ = load(file, {})
        except SettingsError:
            continue
        assert isinstance(found, Settings)


@given(content=st.binary(max_size=60))
def test_any_file_is_read_or_refused_never_worse(content: bytes) -> None:
    """Bytes that are no text, or no TOML, or no setting."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        try:
            found, _ = load(Path(file.name), {})
        except SettingsError:
            return
    assert isinstance(found, Settings)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"SEMIF_MAX_TOKEN": "1"}, "SEMIF_MAX_TOKEN is not a setting"),
        ({"SEMIF_SCORER": "slow"}, "scorer"),
        ({"SEMIF_MAX_TOKENS": "0"}, "max_tokens"),
        ({"SEMIF_MAX_TOKENS": "many"}, "max_tokens"),
        (
            {"SEMIF_TIMEOUT_MS_DEFAULT": "1001", "SEMIF_TIMEOUT_MS_MAX": "1000"},
            "timeout_ms_default, 1001, is over timeout_ms_max, 1000",
        ),
        ({"SEMIF_JOBS": "true", "SEMIF_ACK_WAIT_S": "45.1"}, "dedup_s, 120, is below 120.2"),
        ({"SEMIF_JOBS": "true", "SEMIF_DEAD_STREAM": "SEMIF_RESULTS"}, "must differ"),
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
        ({"SEMIF_MODEL": "a\0b"}, "model"),
        ({"SEMIF_NATS_CREDS": "a\0b"}, "nats_creds"),
        ({"SEMIF_NATS_URL": ""}, "nats_url"),
        ({"SEMIF_NATS_URL": "nats://a:1,nats://u:secret@b:x"}, "nats_url: server 2 of 2"),
        ({"SEMIF_MAX_TOKENS": "\udcff"}, "max_tokens.*not UTF-8"),
        ({"SEMIF_MODEL": "/\udcff"}, "model.*not UTF-8"),
        ({"SEMIF_": "x"}, "SEMIF_ is not a setting"),
        ({"SEMIF_INSTANCE": "a\n"}, "instance"),
        ({"SEMIF_SUBJECT_PREFIX": "a.b\n"}, "subject_prefix"),
        ({"SEMIF_QUEUE_GROUP": "a\n"}, "queue_group"),
        ({"SEMIF_QUEUE_GROUP": "\n"}, "queue_group"),
        ({"SEMIF_QUEUE_GROUP": " "}, "queue_group"),
        ({"SEMIF_QUEUE_GROUP": "a."}, "queue_group"),
        ({"SEMIF_SRV_PREFIX": ""}, "srv_prefix"),
        ({"SEMIF_SRV_PREFIX": "$"}, "srv_prefix"),
        ({"SEMIF_SRV_PREFIX": "$SRV."}, "srv_prefix"),
        ({"SEMIF_SRV_PREFIX": "$SRV.*"}, "srv_prefix"),
        ({"SEMIF_SRV_PREFIX": "$SRV\n"}, "srv_prefix"),
        ({"SEMIF_DEVICE": "cpu\n"}, "device"),
        ({"SEMIF_DEVICE": "cuda:\u0663"}, "device"),
        ({"SEMIF_VRAM_CAP_GIB": "inf"}, "vram_cap_gib"),
        ({"SEMIF_CANARY_S": "inf"}, "canary_s"),
        ({"SEMIF_NATS_USER": "", "SEMIF_NATS_PASSWORD_FILE": __file__}, "nats_user"),
        ({"SEMIF_NATS_PASSWORD_FILE": __file__}, "go together"),
        ({"SEMIF_NATS_TLS_CERT": __file__}, "go together"),
        ({"SEMIF_NATS_TLS_KEY": __file__}, "go together"),
        ({"SEMIF_NATS_NKEY_FILE": str(Path(__file__).parent)}, "nats_nkey_file.*cannot be read"),
        ({"SEMIF_NATS_TLS_CA": f"/{'x' * 5000}"}, "nats_tls_ca.*cannot be read"),
    ],
)
def test_what_cannot_be_used_is_named(environment: dict[str, str], text: str) -> None:
    """The message holds the setting's name, or what to do about it."""
    with pytest.raises(SettingsError, match=text):
        load(environment=environment)


@pytest.mark.parametrize(
    "environment",
    [
        {"SEMIF_NATS_USER": "u", "SEMIF_NATS_PASSWORD_FILE": __file__},
        {"SEMIF_NATS_TLS_CERT": __file__, "SEMIF_NATS_TLS_KEY": __file__},
        {"SEMIF_NATS_TLS_CA": __file__},
        {"SEMIF_QUEUE_GROUP": ""},
        {"SEMIF_SRV_PREFIX": "acme.$SRV"},
        {"SEMIF_VRAM_CAP_GIB": "4"},
        {"SEMIF_VRAM_CAP_GIB": "4", "SEMIF_DEVICE": "cuda:1"},
        {"SEMIF_MAX_TOKENS": "4096", "SEMIF_BATCH_TOKENS_MAX": "4096"},
        {"SEMIF_TIMEOUT_MS_DEFAULT": "1000", "SEMIF_TIMEOUT_MS_MAX": "1000"},
    ],
    ids=str,
)
def test_what_goes_together_is_taken(environment: dict[str, str]) -> None:
    """The good side of each rule that looks at several settings."""
    _, sources = load(environment=environment)

    assert {name for name, source in sources.items() if source != "default"} == {
        name.removeprefix("SEMIF_").lower() for name in environment
    }


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("max_tokens", 128, 1_048_576),
        ("request_depth_max", 1, 200),
        ("heartbeat_s", 0.1, 3600),
        ("queue_jobs_max", 1, 2**53),
        ("queue_tokens_max", 1, 2**53),
        ("canary_s", 5e-324, 86_400),
        ("drain_s", 5e-324, 86_400),
        ("bus_lost_s", 5e-324, 86_400),
    ],
)
def test_bounds_are_where_they_are_said_to_be(
    name: str, lowest: float, highest: float | None
) -> None:
    """The bound itself is taken, the next value beyond is not."""
    variable = f"SEMIF_{name.upper()}"
    roomy = {"SEMIF_BATCH_TOKENS_MAX": "1048576"}
    whole = isinstance(lowest, int)
    below = lowest - 1 if whole else math.nextafter(lowest, -math.inf)
    assert getattr(load(environment={variable: str(lowest)} | roomy)[0], name) == lowest
    with pytest.raises(SettingsError, match=name):
        load(environment={variable: str(below)} | roomy)
    if highest is None:
        return
    above = highest + 1 if whole else math.nextafter(highest, math.inf)
    assert getattr(load(environment={variable: str(highest)} | roomy)[0], name) == highest
    with pytest.raises(SettingsError, match=name):
        load(environment={variable: str(above)} | roomy)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"max_token = 1", "max_token"),
        (b"x = ", "a.toml"),
        (b"\xff", "a.toml"),
        (b"max_tokens = " + b"9" * 5000, "a.toml"),
        (b"max_tokens = " + b"[" * 20_000, "a.toml"),
        (b"[nats]\nurl = 'nats://a'", "nats"),
        (b"SEMIF_MAX_TOKENS = 500", "SEMIF_MAX_TOKENS"),
    ],
    ids=["unknown", "broken", "no text", "digits", "brackets", "a table", "upper case"],
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
    with pytest.raises(SettingsError, match=tmp_path.name):
        load(tmp_path, {})


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("nats://u:secret@a:1", "nats://u:***@a:1"),
        ("nats://u:p@ss@a:1", "nats://u:***@a:1"),
        ("nats://token@a:1", "nats://***@a:1"),
        ("nats://u:x@a:1,tls://v:y@b:2", "nats://u:***@a:1,tls://v:***@b:2"),
        ("nats://a:1", "nats://a:1"),
        ("a:1,b:2", "a:1,b:2"),
        ("u:secret@a:1", "u:***@a:1"),
        ("nats://u:se//cret@a:1", "nats://u:***@a:1"),
        ("nats://u:se,cret@a:1, tls://v:y@b:2", "nats://u:***@a:1, tls://v:***@b:2"),
        ("token@a:1,u:secret@b:1", "***@b:1"),
    ],
)
def test_secrets_in_a_url_are_not_shown(url: str, text: str) -> None:
    """A password, a token, in any of several servers."""
    assert shown("nats_url", url) == text


@given(between=st.text("@:/,#?%[] .", max_size=6), servers=st.integers(1, 3))
def test_no_part_of_a_password_is_shown(between: str, servers: int) -> None:
    """Whatever marks it holds, also those that should have been percent-encoded."""
    url = f"nats://user:SECRET{between}SECRET@host:4222"

    text = shown("nats_url", ",".join([url] * servers))

    assert text == ",".join(["nats://user:***@host:4222"] * servers)


def test_other_values_are_shown_as_they_are() -> None:
    """An absent one is empty."""
    assert shown("nats_user", None) == ""
    assert shown("max_tokens", 5) == "5"
    assert shown("model", Path("/a@b")) == "/a@b"
