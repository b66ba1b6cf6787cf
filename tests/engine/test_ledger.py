"""The start report: order, outcomes, reasons, and a hash of what was proved."""

from __future__ import annotations

import time

import pytest

from actor.engine.base import ProofFailed
from actor.engine.ledger import REASON_CHARS_MAX, Ledger, Refuted
from schemas.health import ProofReport


def run(proofs: dict[str, dict[str, str]]) -> tuple[str, list[ProofReport]]:
    """Pass proofs that record facts; give the hash and what the observer was told."""
    told: list[ProofReport] = []
    ledger = Ledger(told.append)
    for name, facts in proofs.items():
        with ledger.proof(name) as note:
            note.detail = f"{name} is right"
            for key, value in facts.items():
                note.fact(key, value)
    return ledger.hash(), told


def test_each_proof_is_told_when_it_starts_and_when_it_ends() -> None:
    """The observer hears ``running`` and then ``passed`` with the detail, in order."""
    _, told = run({"a": {}, "b": {}})

    assert [(p.name, p.outcome, p.detail) for p in told] == [
        ("a", "running", ""),
        ("a", "passed", "a is right"),
        ("b", "running", ""),
        ("b", "passed", "b is right"),
    ]


def test_seconds_are_the_proofs_own() -> None:
    """Zero while it runs; afterwards what it took, no more than the clock shows around it."""
    told: list[ProofReport] = []
    ledger = Ledger(told.append)
    before = time.perf_counter()

    with ledger.proof("a"):
        spent = sum(range(200_000))
    with pytest.raises(ProofFailed), ledger.proof("b"):
        raise Refuted(str(spent))

    running_a, a, running_b, b = (proof.seconds for proof in told)
    assert running_a == running_b == 0.0
    assert 0.0 <= a + b <= time.perf_counter() - before + 0.001  # each is rounded to 1 ms


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Refuted("The card is too old."), "The card is too old."),
        (KeyError("model_type"), "KeyError: 'model_type'"),
        (RuntimeError("x" * 10_000), ("RuntimeError: " + "x" * 10_000)[:REASON_CHARS_MAX]),
    ],
)
def test_any_exception_fails_the_proof_with_its_reason(error: Exception, reason: str) -> None:
    """Our own words stand alone; what nobody foresaw comes with its type, and is bounded."""
    told: list[ProofReport] = []
    ledger = Ledger(told.append)

    with pytest.raises(ProofFailed) as caught, ledger.proof("weights"):
        raise error

    assert (caught.value.proof, caught.value.reason) == ("weights", reason)
    assert (told[-1].outcome, told[-1].detail) == ("failed", reason)


def test_equal_facts_have_equal_hashes() -> None:
    """Timings and details are no part of it; facts and the proofs passed are."""
    base, _ = run({"a": {"x": "1"}, "b": {"y": "2"}})

    assert run({"a": {"x": "1"}, "b": {"y": "2"}})[0] == base
    assert run({"a": {"x": "2"}, "b": {"y": "2"}})[0] != base
    assert run({"a": {"x": "1"}})[0] != base
    assert run({"b": {"y": "2"}, "a": {"x": "1"}})[0] != base
