"""Options that several commands have, and the settings behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from actor import nats_url, settings
from actor.cli.show import complain

__all__ = ["Config", "Server", "load_settings"]

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
        raise typer.Exit(2) from None
    if server is not None:
        if fault := nats_url.fault_of(server):
            complain("--server", fault)
            raise typer.Exit(2)
        found = msgspec.structs.replace(found, nats_url=server)
    return found, sources
