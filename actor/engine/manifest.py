"""``manifest.json``: what a model directory holds, by size and SHA-256 (INV-5)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import msgspec

from actor.engine.ledger import Refuted

__all__ = ["MANIFEST", "FileEntry", "Manifest", "describe", "read_and_verify", "write"]

MANIFEST = "manifest.json"
FORMAT = 1
LINKED_FOLDER = "a link to a folder"
HASH_THREADS = 4
"""hashlib lets the other threads run; more than a few only compete for the disk."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a model directory."""

    path: str
    """Name relative to the directory."""
    size_bytes: int
    """Length."""
    sha256: str
    """Hexadecimal digest."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``semif-actor model import`` writes and every start verifies."""

    format: int = FORMAT
    """Version of this file's form."""
    source: str
    """Name of the model as replies give it."""
    revision: str
    """40 hexadecimal digits: the hub's commit, or the start of the source file's SHA-256."""
    licence: str
    """Licence of the weights as the source states it; ``unknown`` when it does not."""
    made_from: str
    """What was imported: kind and name of the source."""
    files: tuple[FileEntry, ...]
    """Every file of the directory but the manifest, by name."""


def describe(folder: Path) -> tuple[FileEntry, ...]:
    """Hash every file under ``folder`` but the manifest."""
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).as_posix() != MANIFEST
    ]
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        return tuple(pool.map(lambda path: _entry(folder, path), paths))


def _entry(folder: Path, path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    name = path.relative_to(folder).as_posix()
    return FileEntry(path=name, size_bytes=path.stat().st_size, sha256=digest)


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into ``folder``."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (folder / MANIFEST).write_bytes(text + b"\n")


def read_and_verify(folder: Path, *, revision: str | None) -> tuple[Manifest, str]:
    """Give the manifest of ``folder`` and its own SHA-256, every file checked.

    Raises :class:`Refuted`: no manifest, another revision than ``revision``, a file that is
    missing or changed, or anything that is not listed (a stray file could be a tokenizer that
    overrides the checked one).
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise Refuted(
            f"{folder} has no {MANIFEST}. Make the directory with `semif-actor model import`."
        )
    content = path.read_bytes()
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise Refuted(f"{path} cannot be read: {error}") from None
    if manifest.format != FORMAT:
        raise Refuted(
            f"{path} has format {manifest.format}; this version reads {FORMAT}. Import the model "
            "again."
        )
    if revision is not None and revision != manifest.revision:
        raise Refuted(
            f"The manifest has revision {manifest.revision}, the settings ask for {revision}. "
            "Point SEMIF_MODEL at the right directory, or correct SEMIF_REVISION."
        )
    _compare(folder, manifest)
    return manifest, hashlib.sha256(content).hexdigest()


def _compare(folder: Path, manifest: Manifest) -> None:
    listed = {entry.path: entry for entry in manifest.files}
    _refuse_strays(folder, listed.keys())
    found = {entry.path: entry for entry in describe(folder)}
    for name in sorted(listed):
        if name not in found:
            raise Refuted(f"{name} is in the manifest, but no file in {folder}. Import it again.")
        if found[name] != listed[name]:
            raise Refuted(
                f"{name} is not the file that was imported: {found[name].size_bytes} bytes with "
                f"SHA-256 {found[name].sha256[:12]}..., not {listed[name].size_bytes} bytes with "
                f"{listed[name].sha256[:12]}.... Import the model again."
            )


def _refuse_strays(folder: Path, listed: Iterable[str]) -> None:
    """Refuse whatever is neither listed nor a folder of something listed.

    And a link to a folder even where that folder is expected: ``rglob`` does not enter it,
    transformers would.
    """
    folders = {parent.as_posix() for name in listed for parent in PurePosixPath(name).parents}
    expected = {MANIFEST, *listed, *folders}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        kind = _kind_of(path)
        if name not in expected or kind == LINKED_FOLDER:
            # A name need not be UTF-8, but the heartbeat that carries this text must.
            shown = name.encode("utf-8", "backslashreplace").decode()
            raise Refuted(f"{shown} is {kind} in {folder}, but not in the manifest. Remove it.")


def _kind_of(path: Path) -> str:
    if path.is_symlink():
        return LINKED_FOLDER if path.is_dir() else "a link"
    if path.is_dir():
        return "a folder"
    return "a file" if path.is_file() else "neither a file nor a folder"
