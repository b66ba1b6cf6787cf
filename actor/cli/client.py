"""The commands that ask an actor: ``score`` and ``ping``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from actor.bus.client import NoAnswer, open_client, results_of
from actor.cli.show import complain, console, heartbeat_line, option_lines
from actor.settings import Settings
from schemas.decision import Refused, ScoreReply, SharedReply
from schemas.errors import ErrorBody

__all__ = ["ask_once", "build_request", "ping_once"]


def build_request(
    file: Path | None, state: str | None, question: str | None, options: list[str]
) -> bytes:
    """Give a request's body from a file or from the options; raises ``ValueError``."""
    if file is not None:
        if state or question or options:
            raise ValueError("give a file, or --state, --question and --option, not both")
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    if state is None or question is None or not options:
        raise ValueError("give --state, --question and at least two --option, or a file")
    pairs = [option.partition("=") for option in options]
    if not all(name and separator for name, separator, _ in pairs):
        raise ValueError("an --option is ID=DESCRIPTION")
    return msgspec.json.encode(
        {
            "state": _state(state),
            "question": question,
            "options": [{"id": name, "description": text} for name, _, text in pairs],
        }
    )


def _state(text: str) -> Any:
    """Take a JSON object or array as such, and everything else as the text it is."""
    if text.lstrip()[:1] in {"{", "["}:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
    return text


async def ask_once(settings: Settings, payload: bytes, *, timeout_s: float, as_json: bool) -> int:
    """Send a request, print its answer, give the exit code: 0 with an answer, else 1."""
    try:
        shared = "decisions" in msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        shared = False  # the actor says what is wrong with it
    try:
        async with open_client(settings, "semif-actor score") as client:
            response = await client.ask(payload, shared=shared, timeout_s=timeout_s)
    except NoAnswer as error:
        complain("no answer", error)
        return 1
    if as_json:
        console.print(response.payload.decode(errors="replace"), soft_wrap=True, markup=False)
    elif response.error:
        print_error(response.error)
    elif response.answer:
        print_answer(response.answer)
    return 1 if response.error else 0


def print_error(error: ErrorBody) -> None:
    """Print an error reply in one line."""
    where = f" ({error.field})" if error.field else ""
    complain(f"{error.status} {error.code}", f"{error.message}{where}")


def print_answer(reply: ScoreReply | SharedReply) -> None:
    """Print the probabilities of every decision in a reply."""
    for result in results_of(reply):
        if isinstance(result, Refused):
            console.print(f"{result.id}:", markup=False)
            print_error(result.error)
        else:
            choice = (result.choice, "bold")
            title = Text.assemble(f"{result.id}: ", choice, f", margin {result.margin:.3f}")
            console.print(title, soft_wrap=True)
            console.print(option_lines(result.option_ids, result.probabilities, result.choice))
    model, timing = _model_of(reply), reply.timing
    console.print(
        f"{model}, {timing.total_ms:.0f} ms "
        f"({timing.queue_ms:.0f} queued, {timing.forward_ms:.0f} scoring); "
        "probabilities are conditional on the options and uncalibrated",
        style="dim",
        markup=False,
    )


def _model_of(reply: ScoreReply | SharedReply) -> str:
    if isinstance(reply, ScoreReply):
        return reply.model.source
    scored = [result for result in reply.results if not isinstance(result, Refused)]
    return scored[0].model.source if scored else "no decision was scored"


async def ping_once(settings: Settings, instance: str, *, timeout_s: float) -> int:
    """Wait for a heartbeat and print it; 0 when the actor is ready, else 1."""
    try:
        async with open_client(settings, "semif-actor ping") as client:
            heartbeat = await client.next_heartbeat(instance, timeout_s=timeout_s)
    except NoAnswer as error:
        complain("ping", error)
        return 1
    console.print(heartbeat_line(heartbeat), soft_wrap=True, markup=False)
    return 0 if heartbeat.state == "ready" else 1
