"""The tie to SemIf: which distribution it is, and that its names mean what we think (6.1)."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from actor.engine.ledger import Refuted

__all__ = ["Binding", "bind"]

PACKAGE = "semif_phase1"
SOURCES = ("__init__", "core", "direct", "shared")

SIGNATURES: dict[tuple[str, str], tuple[str, ...]] = {
    ("core", "digest"): ("text",),
    ("core", "direct_messages"): ("row",),
    ("core", "softmax"): ("values",),
    ("direct", "encode_prompt"): ("tokenizer", "row", "max_tokens"),
    ("direct", "score"): ("model", "tokenizer", "row", "metadata", "max_tokens"),
    ("shared", "score_shared"): ("model", "tokenizer", "rows", "metadata", "max_tokens"),
    ("shared", "_state_prefix"): ("tokenizer", "state"),
}
"""Every function of SemIf's that is called or wrapped here, with its parameters."""


@dataclass(frozen=True, slots=True)
class Binding:
    """SemIf as it is installed. ``shared`` is kept as a module: a name in it is wrapped."""

    distribution: str
    version: str
    source_sha256: dict[str, str]
    shared: ModuleType
    digest: Callable[[str], str]
    softmax: Callable[[list[float]], list[float]]
    direct_messages: Callable[[dict[str, Any]], list[dict[str, str]]]
    encode_prompt: Callable[..., tuple[list[int], list[int], str]]
    score: Callable[..., dict[str, Any]]


def bind() -> Binding:
    """Import SemIf and check it; raises :class:`Refuted` with what to re-check."""
    distribution = _sole_distribution()
    modules = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in SOURCES[1:]}
    for (module_name, name), parameters in SIGNATURES.items():
        _check_signature(modules[module_name], name, parameters)
    shared = modules["shared"]
    if shared.score_shared.__globals__ is not vars(shared):
        raise Refuted(
            "score_shared does not resolve its names in semif_phase1.shared: the state-prefix "
            "wrapper would not be called. Something replaced the function; re-check what is "
            "installed over SemIf."
        )
    return Binding(
        distribution=distribution.metadata["Name"],
        version=distribution.version,
        source_sha256=_hash_sources(distribution),
        shared=shared,
        digest=modules["core"].digest,
        softmax=modules["core"].softmax,
        direct_messages=modules["core"].direct_messages,
        encode_prompt=modules["direct"].encode_prompt,
        score=modules["direct"].score,
    )


def _sole_distribution() -> Distribution:
    """Give the distribution that owns the package folder; two of them overwrite each other."""
    marker = f"{PACKAGE}/__init__.py"
    owners = {
        owner.metadata["Name"].lower(): owner
        for owner in distributions()
        if any(str(path) == marker for path in owner.files or ())
    }
    if len(owners) != 1:
        names = ", ".join(sorted(owners)) or "no distribution"
        raise Refuted(
            f"{PACKAGE} must belong to exactly one distribution, but {names} claims it. Install "
            "either fastjev or SemIf's own semif-phase1, never both."
        )
    return owners.popitem()[1]


def _hash_sources(owner: Distribution) -> dict[str, str]:
    """Hash the files that were imported, which must be the distribution's own."""
    folder = Path(importlib.import_module(PACKAGE).__file__ or "").parent
    if folder.resolve() != Path(str(owner.locate_file(PACKAGE))).resolve():
        raise Refuted(
            f"{PACKAGE} is imported from a folder that {owner.metadata['Name']} did not install. "
            "Remove the shadowing folder from the import path."
        )
    return {
        name: hashlib.sha256((folder / f"{name}.py").read_bytes()).hexdigest() for name in SOURCES
    }


def _check_signature(module: ModuleType, name: str, parameters: tuple[str, ...]) -> None:
    function = getattr(module, name, None)
    if function is None:
        raise Refuted(
            f"{module.__name__}.{name} is gone: SemIf changed. Re-check the binding and the "
            "state-prefix wrapper against the installed version, or pin the one that is known."
        )
    found = tuple(inspect.signature(inspect.unwrap(function)).parameters)
    if found != parameters:
        raise Refuted(
            f"{module.__name__}.{name} takes {found}, not {parameters}: SemIf changed. Re-check "
            "every call of it."
        )
