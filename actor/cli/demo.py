"""``semif-actor demo``: everything real, on one machine, in one command.

A NATS server of its own, an actor in its own process, and a client that asks over the bus.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import tempfile
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
from rich.table import Table
from rich.text import Text

from actor.bus.client import BusClient, NoAnswer, open_client, results_of
from actor.bus.embedded import ServerFailed, embedded_server
from actor.bus.objects.api import NoApi
from actor.cli.actor_process import NotReady, actor_process, until_ready
from actor.cli.demo_events import RULES, make_objects, route_events
from actor.cli.samples import CONTROL_TEXT, SAMPLES, SHARED
from actor.cli.show import complain, console, option_lines, start_report
from actor.settings import ENVIRONMENT_PREFIX, Settings
from schemas.decision import Refused, Scored, ScoreReply, Timing
from schemas.errors import ErrorBody
from schemas.health import Heartbeat
from schemas.subjects import Subjects

__all__ = ["commands_for", "run_demo"]

INSTANCE = "demo"
START_TIMEOUT_S = 300.0
ASK_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
OPTIONS_CELLS = 38
"""With the borders, and a column of five digits, this leaves 27 of 80 cells to the questions."""
MAX_TOKENS = 2048
"""Half the default: the longest prompt of a proof is most of the start on a small machine."""


async def run_demo(model: Path, *, stay: bool) -> int:
    """Run the demo and give its exit code; SIGTERM cancels it, and leaves no process behind."""
    if task := asyncio.current_task():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if not model.is_dir():
        complain("demo", f"no model in {model}; `make demo-model` makes one.")
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="semif-demo-") as scratch:
            folder = Path(scratch)
            with embedded_server(folder, jetstream=True) as server:
                console.print(f"[bold]nats-server[/] on {server.url}")
                settings = Settings(nats_url=server.url)
                async with open_client(settings, "semif-actor demo") as client:
                    await make_objects(client, settings)
                    return await _with_actor(client, server.url, model, folder, stay=stay)
    except (NotReady, ServerFailed, NoAnswer, NoApi) as error:
        complain("demo", error)
        return 1


async def _with_actor(client: BusClient, url: str, model: Path, folder: Path, *, stay: bool) -> int:
    started = time.monotonic()
    async with _actor(url, model, folder / "actor.log") as process:
        ready = await until_ready(
            _watch(client), process, folder / "actor.log", within_s=START_TIMEOUT_S
        )
        console.print(start_report(ready))
        memory = ready.engine.memory_resting_bytes / 2**30 if ready.engine else 0.0
        console.print(
            f"ready {time.monotonic() - started:.1f} s after the start; "
            f"the actor holds {memory:.2f} GiB at rest\n"
        )
        await _ask_samples(client)
        console.print(await route_events(client))
        if stay:
            await _stay(url, process)
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(STOP_TIMEOUT_S):
            code = await process.wait()
        console.print(f"actor drained and stopped with exit code {code}")
        return code


def _actor(
    url: str, model: Path, log: Path
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run ``semif-actor run`` as a user would, with no settings but the demo's."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)
    }
    environment |= {
        "SEMIF_NATS_URL": url,
        "SEMIF_MODEL": str(model),
        "SEMIF_DEVICE": "cpu",
        "SEMIF_INSTANCE": INSTANCE,
        "SEMIF_HEARTBEAT_S": "1",
        "SEMIF_MAX_TOKENS": str(MAX_TOKENS),
        "SEMIF_LOG_FORMAT": "console",
        "SEMIF_RULES": str(RULES),
    }
    return actor_process(environment, log)


async def _watch(client: BusClient) -> Heartbeat:
    with console.status("the actor starts") as status:
        async for heartbeat in client.heartbeats(INSTANCE):
            if heartbeat.state == "ready":
                return heartbeat
            if heartbeat.state == "failed":
                console.print(start_report(heartbeat))
                raise NotReady(heartbeat.reason)
            if heartbeat.proofs:
                status.update(f"{heartbeat.state}: {heartbeat.proofs[-1].name}")
    raise NotReady("the heartbeats ended")


async def _ask_samples(client: BusClient) -> None:
    table = _table()
    asked = [(sample.request(), False, sample.question) for sample in (*SAMPLES, CONTROL_TEXT)]
    for request, shared, question in (*asked, (SHARED, True, "one alert, shared")):
        body = msgspec.json.encode(request)
        response = await client.ask(body, shared=shared, timeout_s=ASK_TIMEOUT_S)
        if response.error:
            _add_row(table, str(request.get("id", "an alert")), question, response.error)
        elif response.answer:
            for result in results_of(response.answer):
                _add_row(table, result.id, question, result, response.answer.timing)
    console.print(table)
    console.print(
        "These are real weights on the real path, but a model of 135 million parameters is too "
        "small to judge well.\nOptions are conditional on each other and uncalibrated.",
        style="dim",
    )


def _table() -> Table:
    """Give an empty table whose first column alone gives way on a narrow terminal."""
    table = Table("decision", "options", "ms", show_lines=True)
    table.columns[1].width = OPTIONS_CELLS
    table.columns[2].justify = "right"
    table.columns[2].no_wrap = True
    return table


def _add_row(
    table: Table,
    title: str,
    question: str,
    answer: ScoreReply | Scored | Refused | ErrorBody,
    timing: Timing | None = None,
) -> None:
    """Add a decision and its bars, or why it was refused."""
    asked = Text(f"{title}\n", style="bold").append(question, style="not bold")
    if isinstance(answer, Refused):
        answer = answer.error
    if isinstance(answer, ErrorBody):
        refusal = f"{answer.status} {answer.code}: {answer.message}"
        table.add_row(asked, Text(refusal, style="yellow"), "")
    else:
        lines = option_lines(answer.option_ids, answer.probabilities, answer.choice)
        table.add_row(asked, lines, f"{timing.total_ms:.0f}" if timing else "")


async def _stay(url: str, process: asyncio.subprocess.Process) -> None:
    """Serve until Ctrl-C, which the terminal sends to the actor as well."""
    console.print(f"\nserving on [bold]{url}[/]; Ctrl-C stops. In another terminal:\n")
    for command in commands_for(url):
        console.print(command + "\n", soft_wrap=True, markup=False)
    console.print("The last one needs the NATS command line, `nats`; any client will do.")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    waiting = asyncio.create_task(stop.wait())
    exited = asyncio.create_task(process.wait())
    await asyncio.wait({waiting, exited}, return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, exited):
        task.cancel()


def commands_for(url: str) -> list[str]:
    """Give commands that ask the actor, ready for a shell in any folder."""
    this = Path(sys.argv[0]).absolute()
    program = [sys.executable, "-m", "actor"] if this.suffix == ".py" else [str(this)]
    asked = ("--state", "The parcel never came", "--question", "Is the customer happy?")
    options = ("--option", "yes=Happy", "--option", "no=Unhappy")
    body = msgspec.json.encode(SAMPLES[1].request()).decode()
    return [
        shlex.join([*program, "score", "--server", url, *asked, *options]),
        shlex.join(["nats", "--server", url, "request", Subjects().score, body]),
    ]
