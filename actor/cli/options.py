"""Options that several commands have, and the settings behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from actor import nats_url, settings
from actor.cli.show import complain
from actor.rules.rule import Rule
from actor.rules.rulefile import RulesError, load

__all__ = ["EXIT_USAGE", "Config", "Server", "load_rules", "load_settings"]

EXIT_USAGE = 2
"""The command, a setting or the rule file is wrong: to try again changes nothing."""

Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file of settings; the environment wins.")
]
Server = Annotated[
    str | None, typer.Option("--server", help="NATS URL, in place of SEMIF_NATS_URL.")
]


def load_settings(
    config: Path | None, server: str | None = None
) -> tuple[settings.Settings, dict[str, str]]:
    """Read the settings; a mistake ends the command with exit code 2."""
    try:
        found, sources = settings.load(config)
    except settings.SettingsError as error:
        complain("settings", error)
        raise typer.Exit(EXIT_USAGE) from None
    if server is not None:
        if fault := nats_url.fault_of(server):
            complain("--server", fault)
            raise typer.Exit(EXIT_USAGE)
        found = msgspec.structs.replace(found, nats_url=server)
    return found, sources


def load_rules(file: Path, *, prefix: str) -> tuple[Rule, ...]:
    """Read a rule file; each mistake is told, and ends the command with exit code 2."""
    try:
        return load(file, prefix=prefix)
    except RulesError as error:
        for mistake in error.mistakes:
            complain(str(file), mistake)
        raise typer.Exit(EXIT_USAGE) from None
