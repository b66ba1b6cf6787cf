"""``semif-actor bench``: choose, prepare, measure one after the other, report."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from actor import settings
from actor.bus.client import NoAnswer, open_client
from actor.bus.embedded import ServerFailed, embedded_server
from actor.cli.bench import bus, encoding, overload, pipeline, scoring
from actor.cli.bench.baseline import SemIf
from actor.cli.bench.context import Bench
from actor.cli.bench.processes import running_actor
from actor.cli.bench.records import BenchFailed, Record
from actor.cli.bench.report import table_of, write_line
from actor.cli.bench.workload import short_rows

__all__ = ["NAMES", "environment_of", "run_bench"]

Measure = Callable[[Bench], Coroutine[Any, Any, list[Record]]]
Compare = Callable[[Bench, SemIf], Coroutine[Any, Any, list[Record]]]

WITHOUT_ACTOR: dict[str, Measure] = {
    "bus": bus.measure,
    "encoding": encoding.measure,
    "pipeline": pipeline.measure,
}
"""They start what they need themselves."""
AGAINST_SEMIF: dict[str, Compare] = {
    "shared": scoring.measure_shared,
    "hits": scoring.measure_hits,
    "singles": scoring.measure_singles,
    "short": scoring.measure_short,
}
WITH_ACTOR: dict[str, Measure] = {"overload": overload.measure}
NAMES = (*WITHOUT_ACTOR, *AGAINST_SEMIF, *WITH_ACTOR)
"""In the order they run."""

LOG_CELLS = 140
"""Width of the table in a file, where nobody has to see it whole."""
UNMEASURED = (BenchFailed, NoAnswer)
"""What a measurement raises that cannot be made."""

ACTOR_DEFAULTS = {
    "SEMIF_DEVICE": "cpu",
    "SEMIF_LOG_LEVEL": "warning",
    # An actor left alone asks itself the known decision, while the baseline has the cores.
    "SEMIF_CANARY_S": "86400",
}


async def run_bench(
    model: Path,
    environment: Mapping[str, str],
    *,
    only: Collection[str],
    rounds: int,
    overload_s: float,
    json_to: str | None,
) -> int:
    """Measure and print; gives 1 when a measurement failed or an invariant did not hold."""
    if task := asyncio.current_task():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    console = Console(highlight=False, stderr=json_to == "-")
    if not console.is_terminal:
        console.width = LOG_CELLS
    records: list[Record] = []
    failures: list[str] = []
    try:
        with _lines(json_to) as file, _progress(console) as tell:

            def keep(record: Record) -> None:
                records.append(record)
                if file is not None:
                    write_line(record, file)

            async with _prepared(model, environment, rounds, overload_s, tell) as bench:
                await _measure(bench, only, keep, failures)
    except (*UNMEASURED, ServerFailed, settings.SettingsError, OSError) as error:
        failures.append(str(error))
    if records:
        console.print(table_of(records))
    for failure in failures:
        console.print(Text.assemble(("bench:", "bold red"), f" {failure}"), soft_wrap=True)
    broken = any(record.invariant and not record.reached for record in records)
    return 1 if failures or broken else 0


def environment_of(environment: Mapping[str, str], model: Path, url: str) -> dict[str, str]:
    """Give an actor's environment: the caller's settings, but our server and model."""
    kept = {k: v for k, v in environment.items() if not k.startswith("SEMIF_NATS_")}
    return ACTOR_DEFAULTS | kept | {"SEMIF_NATS_URL": url, "SEMIF_MODEL": str(model)}


@asynccontextmanager
async def _prepared(
    model: Path,
    environment: Mapping[str, str],
    rounds: int,
    overload_s: float,
    tell: Callable[[str], None],
) -> AsyncIterator[Bench]:
    """Give a server of our own and a client of it."""
    with (
        tempfile.TemporaryDirectory(prefix="semif-bench-") as scratch,
        embedded_server(Path(scratch), jetstream=True) as server,
    ):
        variables = environment_of(environment, model, server.url)
        found, _ = settings.load(None, variables)
        async with open_client(found, "semif-actor bench") as client:
            yield Bench(
                url=server.url,
                client=client,
                settings=found,
                environment=variables,
                folder=Path(scratch),
                rounds=rounds,
                overload_s=overload_s,
                tell=tell,
            )


async def _measure(
    bench: Bench, only: Collection[str], keep: Callable[[Record], None], failures: list[str]
) -> None:
    """Run the chosen measurements; one that fails costs the others nothing."""

    async def attempt(name: str, work: Coroutine[Any, Any, list[Record]]) -> None:
        try:
            for record in await work:
                keep(record)
        except UNMEASURED as error:
            failures.append(f"{name}: {error}")

    for name in (name for name in WITHOUT_ACTOR if name in only):
        await attempt(name, WITHOUT_ACTOR[name](bench))
    against = [name for name in AGAINST_SEMIF if name in only]
    others = [name for name in WITH_ACTOR if name in only]
    if not against and not others:
        return
    async with _baseline(bench, wanted=bool(against)) as semif:
        bench.tell("the actor starts")
        async with running_actor(bench.client, bench.environment, bench.folder / "actor.log"):
            for name in against:
                await attempt(name, AGAINST_SEMIF[name](bench, semif))
            for name in others:
                await attempt(name, WITH_ACTOR[name](bench))


@asynccontextmanager
async def _baseline(bench: Bench, *, wanted: bool) -> AsyncIterator[SemIf]:
    """Give SemIf, loaded when it is wanted; before the actor starts, which has work to do then."""
    found = bench.settings
    semif = SemIf(
        found.model or Path(),
        device=found.device,
        dtype=found.dtype,
        tokens_max=found.max_tokens,
    )
    try:
        if wanted:
            bench.tell("the baseline loads")
            await semif.load(short_rows(1, 0)[0])
        yield semif
    finally:
        semif.close()


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Show what runs: in place on a terminal, a line each elsewhere, so that a log tells too."""
    if not console.is_terminal:
        log = Console(stderr=True, highlight=False)
        yield lambda text: log.print(Text(text), soft_wrap=True)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(Text(text))


def _lines(json_to: str | None) -> AbstractContextManager[TextIO | None]:
    """Open what the JSON lines go to."""
    if json_to is None:
        return nullcontext(None)
    if json_to == "-":
        return nullcontext(sys.stdout)
    return Path(json_to).open("w", encoding="utf-8")
