"""The names on the bus, as the contract writes them."""

from __future__ import annotations

import pytest

from schemas import subjects
from schemas.subjects import DiscoverySubjects, Subjects


def test_subjects_of_version_1() -> None:
    """The four subjects under the prefix of the contract."""
    names = Subjects()
    assert names.score == "semif.v1.score"
    assert names.score_shared == "semif.v1.score_shared"
    assert names.status == "semif.v1.status"
    assert names.health("gpu-1") == "semif.v1.health.gpu-1"
    assert names.health("*") == "semif.v1.health.*"


def test_the_prefix_moves_every_subject() -> None:
    """Two deployments share a bus by their prefixes."""
    names = Subjects(prefix="acme.test")
    for name in (names.score, names.score_shared, names.status, names.health("x")):
        assert name.startswith("acme.test.")
        assert "semif" not in name


def test_discovery_has_three_subjects_for_each_verb() -> None:
    """ADR-32: every service, those of the name, and one alone."""
    names = DiscoverySubjects("$SRV", "gpu-1")
    assert names.of("PING") == ("$SRV.PING", "$SRV.PING.semif", "$SRV.PING.semif.gpu-1")
    assert DiscoverySubjects("a.b", "c").of("INFO")[2] == "a.b.INFO.semif.c"


@pytest.mark.parametrize(
    ("constant", "header"),
    [
        ("CONTENT_TYPE", "Content-Type"),
        ("TIMEOUT_HEADER", "Semif-Timeout-Ms"),
        ("MSG_ID_HEADER", "Nats-Msg-Id"),
        ("TRACEPARENT_HEADER", "traceparent"),
        ("ERROR_TEXT_HEADER", "Nats-Service-Error"),
        ("ERROR_CODE_HEADER", "Nats-Service-Error-Code"),
        ("EXPECTED_STREAM_HEADER", "Nats-Expected-Stream"),
        ("TRACESTATE_HEADER", "tracestate"),
        ("RULE_HEADER", "Semif-Rule"),
        ("CHOICE_HEADER", "Semif-Choice"),
        ("PROBABILITY_HEADER", "Semif-Probability"),
        ("MARGIN_HEADER", "Semif-Margin"),
        ("SURE_HEADER", "Semif-Sure"),
        ("PROOF_HEADER", "Semif-Proof"),
        ("EVENT_ID_HEADER", "Semif-Event-Id"),
        ("EVENT_SUBJECT_HEADER", "Semif-Event-Subject"),
        ("HOPS_HEADER", "Semif-Hops"),
        ("CLOUDEVENT_HEADER", "ce-"),
        ("CLOUDEVENTS_JSON", "application/cloudevents+json"),
    ],
)
def test_headers_are_spelled_as_in_the_contract(constant: str, header: str) -> None:
    """Clients in other languages compare these letter by letter."""
    assert getattr(subjects, constant) == header
