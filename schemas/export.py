"""Writes ``schemas/v1``: what other languages read, made from the records of this package.

The files are committed; a test and ``semif-actor schema --check`` compare them with the code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import yaml

from schemas.asyncapi import asyncapi
from schemas.examples import EXAMPLES
from schemas.json_schema import MESSAGES, schema_of

__all__ = ["drift", "export", "write"]


def export() -> dict[str, bytes]:
    """Give every generated file: its path in the folder, with ``/``, and its content."""
    files = {f"{message}.json": _json(schema_of(message)) for message in MESSAGES}
    files["asyncapi.yaml"] = _yaml(asyncapi())
    for message, variants in EXAMPLES.items():
        for variant, record in variants.items():
            name = f"{message}.{variant}" if variant else message
            files[f"examples/{name}.json"] = _json(msgspec.to_builtins(record))
    request = EXAMPLES["score_request"][""]
    files["examples/score_request.msgpack"] = msgspec.msgpack.encode(request)
    return dict(sorted(files.items()))


def write(folder: Path) -> list[Path]:
    """Write the files under ``folder`` and give their paths.

    Other files stay, for ``folder`` may be anyone's; :func:`drift` names them.
    """
    written = []
    for name, content in export().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        written.append(path)
    return written


def drift(folder: Path) -> list[str]:
    """Give the names of files under ``folder`` that differ, are missing or are left over."""
    files = export()
    present = _files_in(folder)
    return sorted(
        name
        for name in files.keys() | present
        if name not in files or name not in present or (folder / name).read_bytes() != files[name]
    )


def _files_in(folder: Path) -> set[str]:
    return {
        Path(root, name).relative_to(folder).as_posix()
        for root, _, names in os.walk(folder)
        for name in names
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


class _PlainDumper(yaml.SafeDumper):
    """YAML for people: text of several lines as it reads, and nothing by anchor."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_PlainDumper.add_representer(str, _PlainDumper.represent_text)


def _yaml(value: Any) -> bytes:
    text: str = yaml.dump(
        value, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text.encode()
