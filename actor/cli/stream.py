"""``semif-actor stream``: the streams and consumers that jobs and rules need."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from actor.cli.options import Config, Server, load_rules, load_settings

__all__ = ["stream_app"]

stream_app = typer.Typer(no_args_is_help=True, help="Streams and consumers of jobs and rules.")


@stream_app.command()
def plan(*, server: Server = None, config: Config = None) -> None:
    """Show what is there, and what `apply` would make or change.

    Exit 0: there is nothing to do. Exit 1: there is. Changes nothing.
    """
    raise typer.Exit(_run(config, server, replicas=None))


@stream_app.command()
def apply(
    *,
    replicas: Annotated[
        int, typer.Option(min=1, max=5, help="Copies of a stream that is made, in a cluster.")
    ] = 1,
    server: Server = None,
    config: Config = None,
) -> None:
    """Make and change what is needed, without asking.

    Streams that rules read or publish to are never touched, nor is anything whose change would
    lose messages. Exit 0: all is as wanted. Exit 1: something is left to do by hand.
    """
    raise typer.Exit(_run(config, server, replicas=replicas))


def _run(config: Config, server: Server, *, replicas: int | None) -> int:
    from actor.cli.stream_table import show_and_apply  # noqa: PLC0415

    found, _ = load_settings(config, server)
    rules = load_rules(found.rules, prefix=found.subject_prefix) if found.rules else ()
    return asyncio.run(show_and_apply(found, rules, replicas=replicas))
