"""How records look: a table for people, JSON lines for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from actor.cli.bench.records import Figure, Record

__all__ = ["table_of", "write_line"]

DIGITS = 3


def table_of(records: Sequence[Record]) -> Table:
    """Give the records as a table, with what one must know to read them below it."""
    table = Table("measurement", "ours", "baseline", "ratio", "figure", "", box=SIMPLE_HEAD)
    for column in table.columns[1:5]:
        column.justify = "right"
        column.no_wrap = True
    last = ""
    for record in records:
        if last and record.measurement != last:
            table.add_section()
        last = record.measurement
        what = Text(f"{record.measurement}: ", style="bold").append(record.what, style="not bold")
        if record.note:
            what.append(f"\n{record.note}", style="dim not bold")
        table.add_row(
            what,
            f"{_number(record.ours)} {record.unit}",
            "" if record.baseline is None else f"{_number(record.baseline)} {record.unit}",
            _value(record),
            _figure(record.figure, record),
            _verdict(record),
        )
    return table


def write_line(record: Record, file: TextIO) -> None:
    """Write a record as one line of JSON, at once: an interrupted run keeps what it has."""
    file.write(msgspec.json.encode(record).decode() + "\n")
    file.flush()


def _number(value: float) -> str:
    """Give three digits, and never an exponent."""
    if abs(value) >= 10 ** (DIGITS - 1):
        return f"{value:,.0f}"
    return f"{value:.{DIGITS}g}"


def _value(record: Record) -> str:
    match record.by:
        case "ours":
            return ""
        case "added":
            return f"{'+' if record.value >= 0 else ''}{_number(record.value)} {record.unit}"
        case _:
            return f"{record.value:.2f}x"


def _figure(figure: Figure | None, record: Record) -> str:
    if figure is None:
        return "-"
    unit = f" {record.unit}" if record.by in {"added", "ours"} else "x"
    bounds = [(">=", figure.at_least), ("<=", figure.at_most)]
    if figure.at_least == figure.at_most:
        bounds = [("=", figure.at_least)]
    return " ".join(f"{sign} {bound:g}{unit}" for sign, bound in bounds if bound is not None)


def _verdict(record: Record) -> Text:
    if record.reached is None:
        return Text("")
    return Text("reached", style="green") if record.reached else Text("missed", style="bold red")
