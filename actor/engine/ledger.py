"""The start report: what was proved, how long it took, and a hash of it.

No torch here: the bus proof, which the engine knows nothing of, is entered in the same report.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from actor.engine.base import Observer, ProofFailed
from schemas.health import ProofReport

__all__ = ["Ledger", "Note", "Refuted"]

REASON_CHARS_MAX = 500


class Note:
    """What one proof found: a sentence for people, and facts that go into the report's hash."""

    def __init__(self, facts: dict[str, str]) -> None:
        self.detail = ""
        self._facts = facts

    def fact(self, name: str, value: object) -> None:
        """Record a fact that must be equal wherever the report's hash is equal."""
        self._facts[name] = str(value)


class Ledger:
    """Collects the proofs in the order they run and tells the observer of each change."""

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self._facts: dict[str, str] = {}
        self._passed: list[str] = []

    @contextmanager
    def proof(self, name: str) -> Iterator[Note]:
        """Run the body as proof ``name``; any exception in it becomes :class:`ProofFailed`."""
        note = Note(self._facts)
        self._observe(ProofReport(name=name, outcome="running", seconds=0.0, detail=""))
        started = time.perf_counter()
        try:
            yield note
        except Exception as error:
            reason = _reason(error)
            self._report(name, "failed", started, reason)
            raise ProofFailed(name, reason) from error
        self._passed.append(name)
        self._report(name, "passed", started, note.detail)

    def hash(self) -> str:
        """Give the report's hash: the proofs passed and the facts they stand on, no timings."""
        content = msgspec.json.encode([self._passed, sorted(self._facts.items())])
        return hashlib.sha256(content).hexdigest()

    def _report(self, name: str, outcome: str, started: float, detail: str) -> None:
        seconds = round(time.perf_counter() - started, 3)
        self._observe(ProofReport(name=name, outcome=outcome, seconds=seconds, detail=detail))


class Refuted(Exception):
    """A proof found its claim to be false; the text is for the person who must act."""


def _reason(error: Exception) -> str:
    """Give the text of a refutation as it is, and of anything unforeseen with its type."""
    text = str(error) if isinstance(error, Refuted) else f"{type(error).__name__}: {error}"
    return text[:REASON_CHARS_MAX]
