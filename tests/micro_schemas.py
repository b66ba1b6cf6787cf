"""Answers of the services protocol against the schemas that the ``nats`` command checks with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).parent / "nats_micro_schemas"
NAME = re.compile(r"io\.nats\.micro\.v1\.((?:ping|info|stats)_response)")


def checked(payload: bytes) -> dict[str, Any]:
    """Read an answer, after checking it against the schema that its type names."""
    answer: dict[str, Any] = json.loads(payload)
    name = NAME.fullmatch(answer["type"])
    assert name is not None
    schema = json.loads((SCHEMAS / f"{name[1]}.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(schema).validate(answer)
    return answer
