"""The generated JSON Schemas say what the code does: no more, no less."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_samples import TOPIC, URGENCY, decided, rule, score_reply, shared_reply
from rule_samples import message as event

import schemas
from schemas.codec import codec_for, decode_request
from schemas.decision import Decision, ScoreReply, ScoreRequest, SharedReply, SharedRequest
from schemas.errors import ERRORS, SemifError
from schemas.json_schema import LIMITS, MESSAGES, field_docs, schema_of
from schemas.validation import check_decision, check_state

SOURCES = sorted(Path(schemas.__file__).parent.glob("*.py"))
JSON = codec_for("application/json")
VALIDATORS = {message: jsonschema.Draft202012Validator(schema_of(message)) for message in MESSAGES}


def structs_in(source: Path) -> list[ast.ClassDef]:
    """Give the classes with annotated fields that have Struct among their bases, or a Struct."""
    known = {"Struct", "SemifResult"}
    return [
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).split(".")[-1] in known for base in node.bases)
    ]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_field_has_a_docstring(source: Path) -> None:
    """The schema's descriptions come from there; there is no second place to write one."""
    for struct in structs_in(source):
        for index, node in enumerate(struct.body):
            if isinstance(node, ast.AnnAssign):
                below = struct.body[index + 1] if index + 1 < len(struct.body) else None
                documented = (
                    isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                    and isinstance(below.value.value, str)
                )
                assert documented, f"{source.name}: {struct.name}.{ast.unparse(node.target)}"


def test_the_search_for_structs_finds_them() -> None:
    """The test above would pass over nothing at all."""
    found = {struct.name for source in SOURCES for struct in structs_in(source)}
    assert {"ScoreRequest", "Scored", "ErrorBody", "Heartbeat", "Subjects"} <= found
    assert len(found) >= 30


def test_docs_of_a_field_are_read_from_the_source() -> None:
    """Own fields and inherited ones; a docstring of two lines keeps both."""
    docs = field_docs(ScoreReply)
    assert docs["margin"] == ("Probability of the choice less that of the runner-up: 0 is a tie.")
    assert docs["input_tokens"] == "Length of the prompt in tokens."


@pytest.mark.parametrize("message", MESSAGES)
def test_schemas_are_valid_draft_2020_12(message: str) -> None:
    """Against the published metaschema; the name of each is a URN of this version."""
    schema = schema_of(message)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:semif:v1:{message}"


@pytest.mark.parametrize("message", MESSAGES)
def test_descriptions_are_markdown(message: str) -> None:
    """As readers of other languages expect; Python's double backticks stay in Python."""
    assert "``" not in json.dumps(schema_of(message))


def code_takes(message: str, body: dict[str, Any]) -> bool:
    """Tell whether the code reads and admits ``body``."""
    data = json.dumps(body).encode()
    try:
        if message == "score_request":
            one = decode_request(JSON, data, ScoreRequest, bytes_max=2**20, depth_max=64)
            check_state(one.state)
            check_decision(Decision(id=one.id, question=one.question, options=one.options))
        else:
            many = decode_request(JSON, data, SharedRequest, bytes_max=2**20, depth_max=64)
            check_state(many.state)
            for decision in many.decisions:
                check_decision(decision)
    except SemifError:
        return False
    return True


def option(number: int, **other: Any) -> dict[str, Any]:
    return {"id": f"o{number}", "description": f"Option {number}"} | other


def asked(**other: Any) -> dict[str, Any]:
    return {"question": "Which?", "options": [option(0), option(1)]} | other


EDGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "id": {"id": "i"},
    "id null": {"id": None},
    "id empty": {"id": ""},
    "id of 256": {"id": "i" * 256},
    "id of 257": {"id": "i" * 257},
    "id of 256 beyond the first plane": {"id": "\U0001f600" * 256},
    "id a number": {"id": 1},
    "question empty": {"question": ""},
    "question blank": {"question": " \n"},
    "question blank, not ASCII": {"question": "\u2003\u00a0"},
    "question with space around": {"question": " q "},
    "question missing": {"question": ...},
    "options missing": {"options": ...},
    "options null": {"options": None},
    "1 option": {"options": [option(0)]},
    "16 options": {"options": [option(number) for number in range(16)]},
    "17 options": {"options": [option(number) for number in range(17)]},
    "option id empty": {"options": [option(0), option(1, id="")]},
    "option id of 257": {"options": [option(0), option(1, id="i" * 257)]},
    "description blank": {"options": [option(0), option(1, description="\t")]},
    "description a number": {"options": [option(0), option(1, description=1)]},
    "option with more": {"options": [option(0), option(1, weight=1)]},
    "option without": {"options": [option(0), {"id": "b"}]},
    "unknown": {"temperature": 0},
}
STATES: dict[str, Any] = {
    "text": "s",
    "text empty": "",
    "object": {"a": 1},
    "object empty": {},
    "array": [None],
    "array empty": [],
    "number": 1,
    "null": None,
    "boolean": True,
    "missing": ...,
}


def given_only(body: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is ``...``."""
    return {name: value for name, value in body.items() if value is not ...}


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES.keys())
def test_schema_and_code_agree_on_a_decision(edge: dict[str, Any]) -> None:
    """On both sides of each limit, alone and as one of several."""
    decision = given_only(asked() | edge)
    alone = {"state": "s", **decision}
    shared = {"state": "s", "decisions": [asked(), decision]}
    assert VALIDATORS["score_request"].is_valid(alone) == code_takes("score_request", alone)
    assert VALIDATORS["shared_request"].is_valid(shared) == code_takes("shared_request", shared)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_schema_and_code_agree_on_a_state(state: Any) -> None:
    """Of every JSON type, empty and not."""
    alone = given_only({"state": state, **asked()})
    shared = given_only({"state": state, "decisions": [asked()]})
    assert VALIDATORS["score_request"].is_valid(alone) == code_takes("score_request", alone)
    assert VALIDATORS["shared_request"].is_valid(shared) == code_takes("shared_request", shared)


@given(question=st.text(max_size=4), description=st.text(max_size=4))
def test_schema_and_code_agree_on_blank_texts(question: str, description: str) -> None:
    """Whatever Unicode calls a space."""
    body = {
        "state": "s",
        "question": question,
        "options": [
            option(0, description="A long description"),
            option(1, description=description),
        ],
    }
    assert VALIDATORS["score_request"].is_valid(body) == code_takes("score_request", body)


@pytest.mark.parametrize(
    "pair",
    [(option(0), option(0, description="Other")), (option(0), option(1, description="Option 0"))],
)
def test_only_the_code_refuses_equal_options(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """JSON Schema has no word for it; the schema's reader learns it from the actor."""
    body = {"state": "s", "question": "Which?", "options": list(pair)}
    assert VALIDATORS["score_request"].is_valid(body)
    assert not code_takes("score_request", body)


def test_a_request_of_no_decisions_is_invalid() -> None:
    """The reader of the schema is told before the actor is asked."""
    assert not VALIDATORS["shared_request"].is_valid({"state": "s", "decisions": []})


WRAP = '[[rules.sinks]]\nsubject = "out"\nmode = "wrap"\n'


@pytest.mark.parametrize(
    ("questions", "reply"), [(TOPIC, score_reply()), (TOPIC + URGENCY, shared_reply())]
)
def test_what_a_rule_wraps_is_what_the_schema_says(
    questions: str, reply: ScoreReply | SharedReply
) -> None:
    """The reply to one question and to several; nothing else passes for one."""
    made = decided(rule(questions=questions, sinks=WRAP), event(), reply).publications[0]
    wrapped = json.loads(made.payload)
    assert VALIDATORS["wrapped"].is_valid(wrapped)
    assert not VALIDATORS["wrapped"].is_valid(wrapped | {"decision": {}})


def test_limits_are_of_fields_that_exist() -> None:
    """A renamed field would lose its limits in silence."""
    for (struct, field), by_type in LIMITS.items():
        assert field in struct.__struct_fields__
        assert set(by_type) <= {"string", "object", "array", ""}


def test_codes_of_errors_are_told() -> None:
    """As examples: a reader must take a code that it does not know."""
    code = schema_of("error_reply")["$defs"]["ErrorBody"]["properties"]["code"]
    assert code["examples"] == [error.code for error in ERRORS]
    assert "enum" not in code


def test_replies_may_grow() -> None:
    """Only requests are closed to unknown fields."""
    for message in MESSAGES:
        closed = schema_of(message).get("additionalProperties", True) is False
        assert closed == message.endswith("request")
