"""How results look: bars worked out by hand, and text that is never markup."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.text import Text

from actor.cli.show import (
    bars,
    complain,
    complain_of_files,
    console,
    heartbeat_line,
    option_lines,
    start_report,
)
from schemas.examples import EXAMPLES
from schemas.health import Heartbeat, ProofReport


@pytest.mark.parametrize(
    ("probability", "bar"),
    [
        (0.0, " " * 16),
        (1.0, "\u2588" * 16),
        (0.5, "\u2588" * 8 + " " * 8),
        (1 / 128, "\u258f" + " " * 15),
        (15 / 128, "\u2588\u2589" + " " * 14),
    ],
    ids=["nothing", "all", "half", "an eighth of a cell", "fifteen eighths"],
)
def test_a_bar_has_sixteen_cells_of_eighths(probability: float, bar: str) -> None:
    """One cell is a sixteenth, and a cell has eight steps."""
    assert bars(probability) == bar


def test_each_option_has_its_line() -> None:
    """Ids are padded to the longest; the choice stands out; no line is left empty."""
    lines = option_lines(["yes", "[b]perhaps"], [0.25, 0.75], "[b]perhaps")

    first, second = lines.plain.split("\n")
    assert first.split() == ["yes", "\u2588" * 4, "25.0%"]
    assert second.startswith("[b]perhaps \u2588")
    assert first.index("\u2588") == second.index("\u2588")


def test_a_complaint_is_printed_letter_for_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets are text, and a long line is not broken: a path can be copied from it."""
    file = io.StringIO()
    monkeypatch.setattr(console, "_file", file)
    text = "/models/[v1]/[/x] " + "long " * 50

    complain("settings", text)

    assert file.getvalue() == f"settings: {text}\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError(2, "No such file", "/[x]/y"), "/[x]/y: No such file"),
        (OSError("two\n  lines"), "two lines"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
    ids=["with a path", "with a text of lines", "without a path"],
)
def test_a_file_that_cannot_be_used_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: OSError, text: str
) -> None:
    """Where, why, and what to do: whatever the error knows."""
    file = io.StringIO()
    monkeypatch.setattr(console, "_file", file)

    complain_of_files("import", error)

    assert file.getvalue() == f"import: {text}. Name a place that can be read and written.\n"


def test_a_heartbeat_is_one_line() -> None:
    """The proof that runs is named until there is a hash, of which twelve digits are enough."""
    beat = EXAMPLES["heartbeat"][""]
    assert isinstance(beat, Heartbeat)
    running = ProofReport(name="weights", outcome="running", seconds=0.0, detail="")
    proving = msgspec.structs.replace(beat, proof=None, state="proving", proofs=(running,))
    proved = msgspec.structs.replace(beat, proof="0123456789abcdef")
    starting = msgspec.structs.replace(proving, proofs=())

    assert "state=proving  proof=weights  " in heartbeat_line(proving)
    assert "  proof=0123456789ab  " in heartbeat_line(proved)
    assert "  proof=-  " in heartbeat_line(starting)
    assert "\n" not in heartbeat_line(beat)


def test_the_start_report_has_a_row_for_each_proof() -> None:
    """What was found is text, whatever brackets it holds."""
    beat = EXAMPLES["heartbeat"][""]
    assert isinstance(beat, Heartbeat)
    failed = ProofReport(name="weights", outcome="failed", seconds=1.5, detail="[/x] gone")

    table = start_report(msgspec.structs.replace(beat, proofs=(failed,)))

    cells = [next(iter(column.cells)) for column in table.columns]
    assert [c.plain if isinstance(c, Text) else c for c in cells] == [
        *("weights", "failed", "1.50", "[/x] gone"),
    ]
