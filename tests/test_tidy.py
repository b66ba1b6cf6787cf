"""The house rules that a machine can hold."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("actor/**/*.py"), *ROOT.glob("schemas/*.py")])
TESTS = sorted(ROOT.glob("tests/**/*.py"))
LINES_MAX = 300
FUNCTION_LINES_MAX = 60


def name_of(path: Path) -> str:
    """Give a path as it is written in the repository."""
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_hold_one_idea(path: Path) -> None:
    """No source file is longer than 300 lines, no function longer than a screen."""
    text = path.read_text(encoding="utf-8")

    assert len(text.splitlines()) <= LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno
            assert length <= FUNCTION_LINES_MAX, node.name


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_every_test_says_what_it_shows(path: Path) -> None:
    """Each test has a docstring, and none is skipped or expected to fail."""
    text = path.read_text(encoding="utf-8")

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert not node.name.startswith("test_") or ast.get_docstring(node), node.name
    assert not re.search(r"pytest\.(mark\.)?(skip|xfail|importorskip)", text) or path.name == (
        "test_tidy.py"
    )


def test_subjects_are_spelled_in_one_place() -> None:
    """No source but subjects.py, settings.py and the generated contract's text names a subject."""
    spelled = re.compile(r"[\"']semif\.v1[.\"']")

    found = [name_of(p) for p in SOURCES if spelled.search(p.read_text(encoding="utf-8"))]

    assert set(found) <= {"schemas/subjects.py", "actor/settings.py"}


def test_the_changelog_keeps_its_form() -> None:
    """Sections of a version come in the order of Keep a Changelog."""
    order = ["Security", "Added", "Changed", "Deprecated", "Removed", "Fixed"]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    for version in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        sections = re.findall(r"^### (\w+)", version, re.MULTILINE)
        assert sections == sorted(sections, key=order.index)


def test_commands_in_the_readme_exist() -> None:
    """Each make target and each command that the README names is there."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    app = (ROOT / "actor" / "cli" / "app.py").read_text(encoding="utf-8")

    for target in re.findall(r"`?make ([a-z-]+)", readme):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for command in re.findall(r"(?:bin/|`)semif-actor ([a-z]+)", readme):
        assert re.search(rf"def {command}\(|name=\"{command}\"", app), command
