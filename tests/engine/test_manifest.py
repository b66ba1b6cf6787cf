"""The manifest: every difference between what was imported and what is there is named."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_models import REVISION, seal

from actor.engine.ledger import Refuted
from actor.engine.manifest import MANIFEST, read_and_verify


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a sealed directory of three files, one of them in a subfolder."""
    model = tmp_path / "model"
    (model / "sub").mkdir(parents=True)
    (model / "weights").write_bytes(b"0123456789")
    (model / "empty").write_bytes(b"")
    (model / "sub" / "more").write_bytes(b"more")
    return seal(model)


def test_it_lists_every_file_with_its_digest(folder: Path) -> None:
    """Sizes and SHA-256 are the files' own; the manifest's digest is that of its bytes."""
    manifest, digest = read_and_verify(folder, revision=None)

    assert {(e.path, e.size_bytes, e.sha256) for e in manifest.files} == {
        ("weights", 10, hashlib.sha256(b"0123456789").hexdigest()),
        ("empty", 0, hashlib.sha256(b"").hexdigest()),
        ("sub/more", 4, hashlib.sha256(b"more").hexdigest()),
    }
    assert digest == hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


def bind(path: Path) -> None:
    """Leave a socket at ``path``."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Give a change that moves ``name`` out of the folder and makes something in its place."""

    def change(folder: Path) -> None:
        (folder / name).rename(folder.parent / "moved")
        make(folder / name)

    return change


DIFFERENCES: dict[str, tuple[Callable[[Path], object], str]] = {
    "one flipped bit": (lambda f: (f / "weights").write_bytes(b"0123456788"), "weights"),
    "cut short": (lambda f: (f / "weights").write_bytes(b"012345678"), "9 bytes"),
    "made longer": (lambda f: (f / "sub" / "more").write_bytes(b"more!"), "sub/more"),
    "no longer empty": (lambda f: (f / "empty").write_bytes(b"x"), "empty"),
    "missing": (lambda f: (f / "sub" / "more").unlink(), "sub/more is in the manifest"),
    "stray": (lambda f: (f / "tokenizer.json").write_bytes(b"{}"), "not in the manifest"),
    "stray in a subfolder": (lambda f: (f / "sub" / "x").write_bytes(b""), "sub/x"),
    "a stray that is hidden": (lambda f: (f / ".x").write_bytes(b""), r"\.x is a file"),
    "a stray whose name is no UTF-8": (
        lambda f: Path(os.fsdecode(bytes(f / "x") + b"\xff")).write_bytes(b""),
        r"x\\udcff is a file",
    ),
    "another manifest": (lambda f: (f / "sub" / MANIFEST).write_bytes(b"{}"), f"sub/{MANIFEST} is"),
    "an empty folder": (lambda f: (f / "more").mkdir(), "more is a folder"),
    "an empty folder in a subfolder": (
        lambda f: (f / "sub" / "sub").mkdir(),
        "sub/sub is a folder",
    ),
    "a pipe": (lambda f: os.mkfifo(f / "x"), "x is neither a file nor a folder"),
    "a pipe in a subfolder": (lambda f: os.mkfifo(f / "sub" / "x"), "sub/x is neither"),
    "a socket": (lambda f: bind(f / "x"), "x is neither a file nor a folder"),
    "a link to nothing": (lambda f: (f / "x").symlink_to(f / "none"), "x is a link in"),
    "a link to itself": (lambda f: (f / "x").symlink_to(f / "x"), "x is a link in"),
    "a link to a listed file": (lambda f: (f / "x").symlink_to(f / "weights"), "x is a link in"),
    "a folder in place of a file": (
        replaced("weights", Path.mkdir),
        "weights is in the manifest",
    ),
    "a pipe in place of a file": (
        replaced("weights", os.mkfifo),
        "weights is in the manifest",
    ),
    "a link to nothing in place of a file": (
        replaced("weights", lambda path: path.symlink_to("none")),
        "weights is in the manifest",
    ),
    "a linked folder in place of a folder": (
        replaced("sub", lambda path: path.symlink_to("../moved")),
        "sub is a link to a folder",
    ),
    "a pipe in place of the manifest": (
        replaced(MANIFEST, os.mkfifo),
        "model import",
    ),
    "a linked folder": (
        lambda f: (f / "additional_chat_templates").symlink_to(f / "sub"),
        "additional_chat_templates is a link to a folder",
    ),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "model import"),
    "a manifest that is no JSON": (lambda f: (f / MANIFEST).write_text("{"), "cannot be read"),
    "a manifest of another format": (
        lambda f: (f / MANIFEST).write_text(
            json.dumps(json.loads((f / MANIFEST).read_text()) | {"format": 2})
        ),
        "format 2",
    ),
    "an entry with another field": (
        lambda f: (f / MANIFEST).write_text(
            (f / MANIFEST).read_text().replace('"path"', '"mode": 420, "path"', 1)
        ),
        "mode",
    ),
    "a manifest that is no UTF-8": (
        lambda f: (f / MANIFEST).write_bytes(
            (f / MANIFEST).read_bytes().replace(b"tiny", b"t\xffny", 1)
        ),
        "cannot be read",
    ),
    "a manifest with another field": (
        lambda f: (f / MANIFEST).write_text(
            json.dumps(json.loads((f / MANIFEST).read_text()) | {"extra": 1})
        ),
        "extra",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_every_difference_is_refused_by_name(folder: Path, name: str) -> None:
    """The text says which file, and what is wrong with it."""
    change, text = DIFFERENCES[name]
    change(folder)

    with pytest.raises(Refuted, match=text) as refuted:
        read_and_verify(folder, revision=None)
    assert str(refuted.value).encode("utf-8")  # a heartbeat carries it


def test_a_listed_file_may_be_a_link_to_its_content(folder: Path, tmp_path: Path) -> None:
    """What counts is what the loader would read; the manifest too may be a link."""
    for name in ("weights", "sub/more", MANIFEST):
        elsewhere = tmp_path / Path(name).name
        (folder / name).rename(elsewhere)
        (folder / name).symlink_to(elsewhere)

    read_and_verify(folder, revision=None)


def test_the_revision_asked_for_must_be_the_manifests(folder: Path) -> None:
    """Equal passes, anything else is refused with both."""
    read_and_verify(folder, revision=REVISION)

    with pytest.raises(Refuted, match=f"{REVISION}.*{'f' * 40}"):
        read_and_verify(folder, revision="f" * 40)
