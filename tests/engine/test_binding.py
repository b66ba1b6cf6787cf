"""The tie to SemIf: one distribution, the known names, its own sources."""

from __future__ import annotations

import hashlib
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from semif_phase1 import core, direct, shared

from actor.engine.binding import SIGNATURES, bind
from actor.engine.ledger import Refuted

MODULES = {"core": core, "direct": direct, "shared": shared}


def test_what_is_bound_is_what_is_installed() -> None:
    """Distribution, version and the digest of each source file, all recomputed here."""
    binding = bind()

    assert (binding.distribution, binding.version) == ("fastjev", version("fastjev"))
    folder = Path(core.__file__).parent
    assert binding.source_sha256 == {
        name: hashlib.sha256((folder / f"{name}.py").read_bytes()).hexdigest()
        for name in ("__init__", "core", "direct", "shared")
    }
    assert binding.score is direct.score


@pytest.mark.parametrize(("module", "name"), SIGNATURES, ids=str)
def test_a_name_that_is_gone_is_refused(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each function that is called or wrapped must be there."""
    monkeypatch.delattr(MODULES[module], name)

    with pytest.raises(Refuted, match=f"{name} is gone"):
        bind()


@pytest.mark.parametrize(("module", "name"), SIGNATURES, ids=str)
def test_a_name_that_takes_other_parameters_is_refused(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed signature is a changed meaning."""

    def changed(something: Any, new: Any) -> None:
        del something, new

    monkeypatch.setattr(MODULES[module], name, changed)

    with pytest.raises(Refuted, match=f"{name} takes"):
        bind()


def test_a_score_shared_with_other_globals_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look up another _state_prefix than the wrapped one."""
    original = shared.score_shared
    copied = types.FunctionType(
        original.__code__, dict(vars(shared)), original.__name__, original.__defaults__
    )
    monkeypatch.setattr(shared, "score_shared", copied)

    with pytest.raises(Refuted, match="would not be called"):
        bind()


def claim(folder: Path, distribution: str) -> None:
    """Install a distribution that says the package folder is its own."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8"
    )
    (info / "RECORD").write_text("semif_phase1/__init__.py,,\n", encoding="utf-8")


def test_two_distributions_with_the_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both wrote the same folder, so nobody knows whose files are there."""
    claim(tmp_path, "semif-phase1")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    with pytest.raises(Refuted, match="fastjev, semif-phase1"):
        bind()


def test_a_package_of_no_distribution_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files copied by hand have no version that could be named."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    with pytest.raises(Refuted, match="no distribution claims it"):
        bind()


def test_a_package_from_another_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that run must be those that the distribution installed."""
    monkeypatch.setattr(sys.modules["semif_phase1"], "__file__", str(tmp_path / "x.py"))

    with pytest.raises(Refuted, match="shadowing folder"):
        bind()
