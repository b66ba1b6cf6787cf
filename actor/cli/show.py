"""How results look in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from schemas.health import Heartbeat

__all__ = [
    "bars",
    "complain",
    "complain_of_files",
    "console",
    "heartbeat_line",
    "option_lines",
    "start_report",
]

console = Console(highlight=False)
BAR_CELLS = 16
PARTS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"
BLOCK = "\u2588"


def complain(kind: str, text: object) -> None:
    """Print what is wrong in one line. ``text`` is never markup: it may hold anyone's brackets."""
    console.print(Text.assemble((f"{kind}:", "bold red"), f" {text}"), soft_wrap=True)


def complain_of_files(kind: str, error: OSError) -> None:
    """Print in one line which file or folder cannot be used, why, and what to do."""
    where = f"{error.filename}: " if error.filename else ""
    reason = " ".join(str(error.strerror or error).split())
    complain(kind, f"{where}{reason}. Name a place that can be read and written.")


def bars(probability: float) -> str:
    """Give a bar of eighths of a cell, ``BAR_CELLS`` wide at 1."""
    eighths = round(probability * BAR_CELLS * 8)
    bar = BLOCK * (eighths // 8) + PARTS[eighths % 8].strip()
    return bar.ljust(BAR_CELLS)


def option_lines(option_ids: Sequence[str], probabilities: Sequence[float], choice: str) -> Text:
    """Give one line for each option, the choice in bold."""
    width = max(map(len, option_ids))
    lines = Text()
    for name, probability in zip(option_ids, probabilities, strict=True):
        style = "bold green" if name == choice else ""
        line = f"{name.ljust(width)} {bars(probability)} {probability:6.1%}"
        lines.append(line + "\n", style=style)
    lines.rstrip()
    return lines


def start_report(heartbeat: Heartbeat) -> Table:
    """Give the proofs of a start as a table."""
    table = Table("proof", "outcome", "seconds", "found", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for proof in heartbeat.proofs:
        style = {"passed": "green", "failed": "bold red"}.get(proof.outcome, "yellow")
        table.add_row(
            proof.name,
            Text(proof.outcome, style=style),
            f"{proof.seconds:.2f}",
            Text(proof.detail),
        )
    return table


def heartbeat_line(heartbeat: Heartbeat) -> str:
    """Give a heartbeat in one line."""
    counters = heartbeat.counters
    running = heartbeat.proofs[-1].name if heartbeat.proofs else "-"
    facts: Iterable[tuple[str, Any]] = (
        ("state", heartbeat.state),
        ("proof", running if heartbeat.proof is None else heartbeat.proof[:12]),
        ("received", counters.received),
        ("answered", counters.answered),
        ("refused", sum(counters.refused.values())),
        ("queue", f"{heartbeat.queue.jobs}/{heartbeat.queue.jobs_max}"),
        ("p50_ms", round(heartbeat.latency.p50_ms)),
    )
    return f"{heartbeat.instance}  " + "  ".join(f"{name}={value}" for name, value in facts)
