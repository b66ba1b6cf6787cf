"""``semif-actor rules`` and ``replay``: the rule file, before and behind the live events."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from actor.cli.options import EXIT_USAGE, Config, Server, load_rules, load_settings
from actor.cli.show import complain, complain_of_files, console
from actor.rules.rule import CoreSource, Rule

__all__ = ["replay", "rules_app"]

rules_app = typer.Typer(no_args_is_help=True, help="Decisions behind an event stream.")

File = Annotated[Path, typer.Argument(help="Rule file, TOML.")]


@rules_app.command()
def check(file: File, *, config: Config = None) -> None:
    """Tell every mistake of a rule file (exit 2), or show its rules (exit 0)."""
    found, _ = load_settings(config)
    console.print(_table_of(load_rules(file, prefix=found.subject_prefix)))


@rules_app.command(name="try")
def try_(
    file: File,
    *,
    event: Annotated[Path, typer.Option(help="Event, as it is; - reads standard input.")],
    rule: Annotated[str | None, typer.Option(help="Name of the rule. Default: all.")] = None,
    subject: Annotated[
        str | None, typer.Option(help="Where the event comes from. Default: made of the source.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of the event.")] = None,
    timeout_s: Annotated[float, typer.Option(min=0.001, max=600)] = 30.0,
    server: Server = None,
    config: Config = None,
) -> None:
    """Show what would be asked and published for an event; publishes nothing.

    With a real decision when an actor answers; else with the subjects of every possible choice.
    """
    from actor.cli.rule_trial import Trial, try_event  # noqa: PLC0415

    found, _ = load_settings(config, server)
    rules = _chosen(load_rules(file, prefix=found.subject_prefix), rule)
    pairs = [text.partition("=") for text in header or []]
    if not all(name and equals for name, equals, _ in pairs):
        complain("--header", "is NAME=VALUE.")
        raise typer.Exit(EXIT_USAGE)
    try:
        payload = sys.stdin.buffer.read() if str(event) == "-" else event.read_bytes()
    except OSError as error:
        complain_of_files("event", error)
        raise typer.Exit(EXIT_USAGE) from None
    trial = Trial(rules, payload, {name: text for name, _, text in pairs}, subject)
    raise typer.Exit(asyncio.run(try_event(found, trial, timeout_s=timeout_s)))


def replay(
    file: File,
    *,
    rule: Annotated[str, typer.Option(help="Name of the rule; it reads a stream.")],
    start: Annotated[
        str, typer.Option("--from", help="First event: a sequence number, or a time (RFC 3339).")
    ] = "1",
    end: Annotated[
        str | None,
        typer.Option("--to", help="Last event, likewise. Default: the last that is there now."),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.01, max=10_000, help="Events a second.")] = 10.0,
    resume: Annotated[
        Path | None, typer.Option(help="File that keeps the place; goes on there if it exists.")
    ] = None,
    server: Server = None,
    config: Config = None,
) -> None:
    """Run stored events through a rule, behind all live traffic, and publish as the rule says.

    Ctrl-C stops it; the same command with --resume goes on. Exit 1: stopped before the end.
    """
    from actor.cli.replay import run_replay  # noqa: PLC0415
    from actor.cli.replay_stretch import Stretch  # noqa: PLC0415

    found, _ = load_settings(config, server)
    [chosen] = _chosen(load_rules(file, prefix=found.subject_prefix), rule)
    if isinstance(chosen.source, CoreSource):
        complain("replay", f'rule "{rule}" reads a core subject: nothing is stored there.')
        raise typer.Exit(EXIT_USAGE)
    try:
        stretch = Stretch.of(chosen, chosen.source, start, end)
    except ValueError as error:
        complain("replay", error)
        raise typer.Exit(EXIT_USAGE) from None
    raise typer.Exit(asyncio.run(run_replay(found, stretch, events_per_s=rate, state=resume)))


def _chosen(rules: tuple[Rule, ...], name: str | None) -> tuple[Rule, ...]:
    if name is None:
        return rules
    chosen = tuple(rule for rule in rules if rule.name == name)
    if not chosen:
        complain("--rule", f'there is no rule "{name}"; there are: {_names(rules)}.')
        raise typer.Exit(EXIT_USAGE)
    return chosen


def _names(rules: tuple[Rule, ...]) -> str:
    return ", ".join(rule.name for rule in rules)


def _table_of(rules: tuple[Rule, ...]) -> Table:
    table = Table("rule", "reads", "asks", "publishes", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"  # a subject cut short would be another subject
    for rule in rules:
        source = rule.source
        shared = (
            f"core, queue group {source.queue_group}"
            if isinstance(source, CoreSource)
            else f"stream {source.stream}, durable {source.durable}"
        )
        sinks = [
            f"{sink.subject.text} ({sink.mode}, {sink.stream or 'core'})" for sink in rule.sinks
        ]
        table.add_row(
            Text(rule.name, style="bold"),
            Text(f"{source.subject}\n{shared}"),
            Text("\n".join(asking.question.id for asking in rule.asking)),
            Text("\n".join(sinks)),
        )
    return table
