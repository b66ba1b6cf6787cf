"""The generated contract: equal to the code, and valid by the published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from schemas.export import drift, export, write

FOLDER = Path(__file__).parents[2] / "schemas" / "v1"
EXAMPLES = sorted((FOLDER / "examples").glob("*.json"))


def validator_of(message: str) -> jsonschema.Draft202012Validator:
    """Give a validator made from the committed file."""
    schema = json.loads((FOLDER / f"{message}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_committed_files_are_what_the_code_writes() -> None:
    """No file of the contract differs from the code, is missing, or is left over."""
    assert drift(FOLDER) == []


def test_drift_names_what_differs(tmp_path: Path) -> None:
    """A changed, a missing and a stray file are each named."""
    write(tmp_path)
    assert drift(tmp_path) == []

    (tmp_path / "heartbeat.json").write_text("{}", encoding="utf-8")
    (tmp_path / "asyncapi.yaml").unlink()
    (tmp_path / "stray.json").write_text("{}", encoding="utf-8")

    assert drift(tmp_path) == ["asyncapi.yaml", "heartbeat.json", "stray.json"]


def test_the_export_is_deterministic() -> None:
    """Two exports are equal to the byte."""
    assert export() == export()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.stem))
def test_every_example_is_valid_by_its_schema(path: Path) -> None:
    """The golden messages are what the schemas describe."""
    message = path.name.split(".", 1)[0]

    validator_of(message).validate(json.loads(path.read_text(encoding="utf-8")))


def test_the_msgpack_example_says_the_same_as_its_json_twin() -> None:
    """One request in both encodings."""
    packed = msgspec.msgpack.decode((FOLDER / "examples" / "score_request.msgpack").read_bytes())

    plain = json.loads((FOLDER / "examples" / "score_request.json").read_text(encoding="utf-8"))
    assert packed == plain


def test_asyncapi_is_valid_by_its_own_schema(asyncapi_schema_path: Path) -> None:
    """AsyncAPI's official JSON Schema accepts the document."""
    schema = json.loads(asyncapi_schema_path.read_text(encoding="utf-8"))
    document = yaml.safe_load((FOLDER / "asyncapi.yaml").read_text(encoding="utf-8"))

    jsonschema.validators.validator_for(schema)(schema).validate(document)

    assert document["asyncapi"] == "3.0.0"


def test_asyncapi_has_every_subject() -> None:
    """The four subjects of the design's table are channels."""
    document = yaml.safe_load((FOLDER / "asyncapi.yaml").read_text(encoding="utf-8"))

    addresses = {channel.get("address") for channel in document["channels"].values()}

    assert {"semif.v1.score", "semif.v1.score_shared", "semif.v1.status"} <= addresses
    assert any(str(a).startswith("semif.v1.health.") for a in addresses)


def request_with(**changes: Any) -> dict[str, Any]:
    """Give a good score request with changes; None takes a field away."""
    options = [{"id": "a", "description": "x"}, {"id": "b", "description": "y"}]
    request = {"state": "s", "question": "q", "options": options} | changes
    return {name: value for name, value in request.items() if value is not ...}


BAD_REQUESTS: dict[str, dict[str, Any]] = {
    "no state": request_with(state=...),
    "null state": request_with(state=None),
    "a number as state": request_with(state=0),
    "empty state": request_with(state=""),
    "empty object": request_with(state={}),
    "empty list": request_with(state=[]),
    "blank question": request_with(question=" "),
    "one option": request_with(options=[{"id": "a", "description": "x"}]),
    "17 options": request_with(options=[{"id": f"{n}", "description": f"{n}"} for n in range(17)]),
    "blank description": request_with(
        options=[{"id": "a", "description": " "}, {"id": "b", "description": "y"}]
    ),
    "empty id": request_with(id=""),
    "unknown field": request_with(stat="s"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_the_schema_refuses_what_the_actor_refuses(name: str) -> None:
    """A client that validates before it sends learns of its mistake without a round trip."""
    with pytest.raises(jsonschema.ValidationError):
        validator_of("score_request").validate(BAD_REQUESTS[name])


def test_every_property_is_described() -> None:
    """Each field of each message has its meaning in the schema, tags aside."""
    for path in FOLDER.glob("*.json"):
        schema = json.loads(path.read_text(encoding="utf-8"))
        for part in (schema, *schema.get("$defs", {}).values()):
            for name, field in part.get("properties", {}).items():
                assert "description" in field or name == "outcome", f"{path.name}: {name}"


def test_writing_makes_the_folder_and_leaves_other_files_alone(tmp_path: Path) -> None:
    """The folder may be new, or anyone's."""
    folder = tmp_path / "deep" / "v1"
    assert drift(folder) == list(export())
    write(folder)
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    write(folder)
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert drift(folder) == ["notes.txt"]
