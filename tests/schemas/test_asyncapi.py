"""The AsyncAPI document: valid, complete, and true to the names of the bus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from rule_samples import TOPIC, URGENCY, decided, message, rule, shared_reply

from schemas.asyncapi import asyncapi
from schemas.export import export
from schemas.json_schema import MESSAGES


def document() -> dict[str, Any]:
    """Give the document as a reader of the file gets it."""
    loaded: dict[str, Any] = yaml.safe_load(export()["asyncapi.yaml"])
    return loaded


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def test_the_official_schema_refuses_what_is_wrong(asyncapi_schema_path: Path) -> None:
    """The validation in test_export is no formality: a misspelt action does not pass."""
    official = json.loads(asyncapi_schema_path.read_text())
    validator = jsonschema.Draft7Validator(official)
    wrong = document()
    assert validator.is_valid(wrong)
    wrong["operations"]["score"]["action"] = "recieve"
    assert not validator.is_valid(wrong)


def test_yaml_reads_back_as_it_was_meant() -> None:
    """No text turned into a number, a date or a truth value; no anchors."""
    assert document() == json.loads(json.dumps(asyncapi()))
    assert b"&id" not in export()["asyncapi.yaml"]


def test_every_reference_leads_somewhere() -> None:
    """Within the document, or to a file beside it."""
    files = export()
    for reference in references(asyncapi()):
        if reference.startswith("./"):
            assert reference.removeprefix("./") in files
        else:
            node: Any = asyncapi()
            for step in reference.removeprefix("#/").split("/"):
                node = node[step]


def test_subjects_are_those_of_the_contract() -> None:
    """Inboxes, and what a rule file names, have no fixed address."""
    addresses = {name: channel["address"] for name, channel in document()["channels"].items()}
    assert addresses == {
        "score": "semif.v1.score",
        "score_reply": None,
        "score_shared": "semif.v1.score_shared",
        "score_shared_reply": None,
        "status": "semif.v1.status",
        "status_reply": None,
        "health": "semif.v1.health.{instance}",
        "jobs": "semif.v1.jobs.{rest}",
        "results": "semif.v1.results.{rest}",
        "dead": "semif.v1.dead.{rest}",
        "events": None,
        "decisions": None,
    }


def test_requests_are_shared_by_a_queue_group_and_status_is_not() -> None:
    """One actor answers a decision; every actor answers for itself."""
    operations = document()["operations"]
    assert operations["score"]["bindings"]["nats"]["queue"] == "semif"
    assert operations["score_shared"]["bindings"]["nats"]["queue"] == "semif"
    assert "bindings" not in operations["status"]


def test_each_request_may_end_in_an_error() -> None:
    """The reply of both request subjects is an answer or the error message."""
    for name, answer in (("score", "score_reply"), ("score_shared", "shared_reply")):
        replies = [item["$ref"] for item in document()["operations"][name]["reply"]["messages"]]
        assert [reply.rsplit("/", 1)[1] for reply in replies] == [answer, "error_reply"]


def test_headers_are_those_of_the_contract() -> None:
    """Five are read with a request; an error is told by two."""
    messages = document()["components"]["messages"]
    for request in ("score_request", "shared_request"):
        assert set(messages[request]["headers"]["properties"]) == {
            "Content-Type",
            "Semif-Timeout-Ms",
            "Semif-Priority",
            "Nats-Msg-Id",
            "traceparent",
        }
    error = messages["error_reply"]["headers"]
    assert error["required"] == ["Nats-Service-Error", "Nats-Service-Error-Code"]
    assert error["properties"]["Nats-Service-Error-Code"]["examples"] == [
        "400", "413", "415", "422", "429", "500", "503", "504", "507",
    ]  # fmt: skip


def test_what_a_rule_publishes_has_the_headers_that_it_is_published_with() -> None:
    """Of one question and of several; those that are always there are required."""
    messages = document()["components"]["messages"]
    alone = decided(rule(), message()).publications[0].headers
    of_two = decided(rule(questions=TOPIC + URGENCY), message(), shared_reply())
    several = of_two.publications[0].headers
    for name in ("annotated", "decision", "wrapped"):
        headers = messages[name]["headers"]
        optional = {"Semif-Event-Id", "Nats-Msg-Id"}
        assert set(headers["properties"]) == {n for n in alone if n.startswith("Semif-")} | optional
        assert set(headers["required"]) == {n for n in alone if n in several and "Semif-" in n}
        jsonschema.validate(alone, headers)
        jsonschema.validate(several, headers)


def test_every_message_has_its_schema_and_examples() -> None:
    """Payloads are the files beside the document."""
    messages = document()["components"]["messages"]
    bare = {"status_request", "dead_letter", "event", "annotated", "decision"}
    assert set(messages) == {*MESSAGES, *bare}
    for name in MESSAGES:
        assert messages[name]["payload"] == {"$ref": f"./{name}.json"}
        assert messages[name]["examples"]
