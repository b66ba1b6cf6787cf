"""Requests and replies against SemIf, whose fields they carry."""

from __future__ import annotations

import ast
import inspect

import msgspec
import pytest
from semif_phase1 import core, direct, shared

from schemas.decision import (
    OPTIONS_MAX,
    OPTIONS_MIN,
    Decision,
    ModelInfo,
    Option,
    Refused,
    Scored,
    ScoreReply,
    ScoreRequest,
    SharedRequest,
)
from schemas.errors import ErrorBody

OPTIONS = (Option(id="a", description="One"), Option(id="b", description="Two"))


def keys_written(function: object, marker: str) -> set[str]:
    """Give the keys of the dict displayed in ``function`` that has the key ``marker``."""
    tree = ast.parse(inspect.getsource(function))  # type: ignore[arg-type]
    displays = [
        {key.value for key in node.keys if isinstance(key, ast.Constant)}
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
    ]
    [keys] = [keys for keys in displays if marker in keys]
    return {str(key) for key in keys}


def fields(record: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(record)}


def test_a_score_reply_has_every_field_of_semifs_score() -> None:
    """Nothing lost, nothing renamed; what is ours stands beside."""
    semif = keys_written(direct.score, "option_logits")
    assert fields(ScoreReply) - semif == {"choice", "margin", "timing", "served_by"}
    assert semif <= fields(ScoreReply)


def test_a_scored_decision_has_every_field_of_semifs_score_shared() -> None:
    """Nothing lost, nothing renamed; what is ours stands beside."""
    semif = keys_written(shared.score_shared, "option_logits")
    assert fields(Scored) - semif == {"choice", "margin"}
    assert semif <= fields(Scored)


def test_model_info_has_every_field_of_semifs_metadata() -> None:
    """And the one that ``score_shared`` adds."""
    semif = keys_written(core.load_causal_model, "torch_version")
    assert fields(ModelInfo) == semif | {"serving_config"}


def test_the_number_of_options_is_semifs() -> None:
    """One letter each, and a choice to make."""
    assert OPTIONS_MAX == len(core.LETTERS) == 16
    assert OPTIONS_MIN == 2


def test_an_id_not_given_is_not_sent() -> None:
    """Requests are as short as the caller made them."""
    request = ScoreRequest(state="s", question="q", options=OPTIONS)
    assert msgspec.json.encode(request) == (
        b'{"state":"s","question":"q","options":'
        b'[{"id":"a","description":"One"},{"id":"b","description":"Two"}]}'
    )


def test_results_of_a_shared_reply_are_told_apart_by_outcome() -> None:
    """A refused decision carries its id and its error, and the word for it."""
    refused = Refused(
        id="d",
        error=ErrorBody(code="invalid", status=422, message="No.", retryable=False, field="id"),
    )
    data = msgspec.json.encode(refused)
    assert data == (
        b'{"outcome":"error","id":"d","error":'
        b'{"code":"invalid","status":422,"message":"No.","retryable":false,"field":"id"}}'
    )
    assert msgspec.json.decode(data, type=Scored | Refused) == refused


@pytest.mark.parametrize("record", [Option, Decision, ScoreRequest, SharedRequest])
def test_requests_refuse_unknown_fields(record: type[msgspec.Struct]) -> None:
    """A typo is told, not ignored."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `typo`"):
        msgspec.json.decode(b'{"typo": 1}', type=record)


def test_replies_may_grow() -> None:
    """A client takes a field that it does not know: servers are upgraded first."""
    body = b'{"code":"invalid","status":422,"message":"No.","retryable":false,"new":1}'
    assert msgspec.json.decode(body, type=ErrorBody).code == "invalid"


def test_a_request_cannot_be_changed() -> None:
    """Requests go from thread to thread; none can alter them."""
    request = ScoreRequest(state="s", question="q", options=OPTIONS)
    with pytest.raises(AttributeError):
        request.question = "other"  # type: ignore[misc]
