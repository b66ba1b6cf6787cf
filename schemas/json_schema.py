"""JSON Schema (draft 2020-12) of each message, from the Structs and the docstrings of their fields.

msgspec tells the shape. It does not keep the docstring under a field, so that is read from the
source; and it does not know what ``schemas.validation`` refuses, so that is in :data:`LIMITS`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from typing import Any

import msgspec

from schemas import decision, errors, health
from schemas.decision import (
    OPTIONS_MAX,
    OPTIONS_MIN,
    Decision,
    Option,
    ScoreReply,
    ScoreRequest,
    SharedReply,
    SharedRequest,
    Wrapped,
)
from schemas.errors import ERRORS, ErrorBody, ErrorReply
from schemas.health import Heartbeat
from schemas.validation import ID_CHARS_MAX

__all__ = ["DIALECT", "LIMITS", "MESSAGES", "field_docs", "schema_of"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

MESSAGES: dict[str, type[msgspec.Struct]] = {
    "score_request": ScoreRequest,
    "score_reply": ScoreReply,
    "shared_request": SharedRequest,
    "shared_reply": SharedReply,
    "error_reply": ErrorReply,
    "wrapped": Wrapped,
    "heartbeat": Heartbeat,
}
"""Every message of the wire by the name of its file."""

_ID = {"minLength": 1, "maxLength": ID_CHARS_MAX}
_NOT_BLANK = {"minLength": 1, "pattern": r"\S"}
_OPTIONS = {"minItems": OPTIONS_MIN, "maxItems": OPTIONS_MAX}
_REPLY = {"anyOf": [{"$ref": "#/$defs/ScoreReply"}, {"$ref": "#/$defs/SharedReply"}]}
_STATE = {"string": {"minLength": 1}, "object": {"minProperties": 1}, "array": {"minItems": 1}}

LIMITS: dict[tuple[type[msgspec.Struct], str], dict[str, dict[str, Any]]] = {
    (Option, "id"): {"string": _ID},
    (Option, "description"): {"string": _NOT_BLANK},
    (ScoreRequest, "id"): {"string": _ID},
    (ScoreRequest, "state"): _STATE,
    (ScoreRequest, "question"): {"string": _NOT_BLANK},
    (ScoreRequest, "options"): {"array": _OPTIONS},
    (Decision, "id"): {"string": _ID},
    (Decision, "question"): {"string": _NOT_BLANK},
    (Decision, "options"): {"array": _OPTIONS},
    (SharedRequest, "state"): _STATE,
    (SharedRequest, "decisions"): {"array": {"minItems": 1}},
    (Wrapped, "decision"): {"": _REPLY},
    (ErrorBody, "code"): {"string": {"examples": [error.code for error in ERRORS]}},
}
"""What the code holds beyond types: Struct and field -> JSON type ("": any) -> keywords.

Error codes are examples, not an enumeration: a reader must take a code it does not know.

JSON Schema cannot say that ids are unique, that descriptions differ, or how many bytes, tokens and
levels of nesting an actor takes: those are answered by the actor.
"""

_INSIDE: dict[type[msgspec.Struct], tuple[type[msgspec.Struct], ...]] = {
    Wrapped: (ScoreReply, SharedReply)
}
"""Records inside a field of any type: msgspec knows no union of two that have no tag."""


def schema_of(message: str) -> dict[str, Any]:
    """Give the JSON Schema of ``message``, complete in itself."""
    record = MESSAGES[message]
    records = (record, *_INSIDE.get(record, ()))
    _, components = msgspec.json.schema_components(records, ref_template="#/$defs/{name}")
    structs = _structs_of_the_contract()
    for name, schema in components.items():
        _complete(schema, structs[name])
    root = components.pop(record.__name__)
    return {
        "$schema": DIALECT,
        "$id": f"urn:semif:v1:{message}",
        **root,
        **({"$defs": dict(sorted(components.items()))} if components else {}),
    }


def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Give the docstring under each field of ``struct``, those of its bases included."""
    docs: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__module__.startswith(f"{__package__}."):
            docs |= _docs_of_module(base.__module__).get(base.__name__, {})
    return docs


@functools.cache
def _docs_of_module(name: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {node.name: _docs_of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _docs_of_class(node: ast.ClassDef) -> dict[str, str]:
    docs: dict[str, str] = {}
    for field, below in itertools.pairwise(node.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = inspect.cleandoc(text)
            case _:
                continue
    return docs


def _structs_of_the_contract() -> dict[str, type[msgspec.Struct]]:
    return {
        name: member
        for module in (decision, errors, health)
        for name, member in vars(module).items()
        if isinstance(member, type) and issubclass(member, msgspec.Struct)
    }


def _complete(schema: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Add descriptions and limits to one Struct's schema, in place."""
    schema["description"] = _markdown(schema["description"])
    docs = field_docs(struct)
    for name, field in schema["properties"].items():
        for alternative in field.get("anyOf", [field]):
            limits = LIMITS.get((struct, name), {})
            alternative.update(limits.get(alternative.get("type", ""), {}))
        # OpenAPI's keyword, which neither JSON Schema nor AsyncAPI has in this form.
        field.get("items", {}).pop("discriminator", None)
        if name in docs:  # a tag, such as "outcome", has no line of its own in the source
            field["description"] = _markdown(docs[name])


def _markdown(text: str) -> str:
    return text.replace("``", "`")
