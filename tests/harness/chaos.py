"""An hour of faults in a minute: three servers, three actors, and callers that count.

``python tests/harness/chaos.py --seconds 60 --seed 1``. Exits with 1 when a request was lost
without a reason that can be shown (see :mod:`harness.verdict`), or answered twice. The seed decides
which faults come and when; what they hit is a matter of microseconds and not the same twice.

It finds what it should: with nats-py's own ``unsubscribe`` in place of ``Connection.end``, 15 s of
it lost 38 requests.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

if not __package__:  # started as a script
    sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.callers import ANSWERED, Caller, Load, Request, callers_at
from harness.cluster import Node, cluster_of_three
from harness.faults import ACTOR_KILL, DRAIN, Fault, Faults, Plan
from harness.kept_actors import KeptActor
from harness.verdict import BAD, LOST, Evidence, verdict

BATCH_S = 0.04
BATCH_ROWS = 8
"""What three actors can do: 600 requests a second, ten times the steady rate."""
PER_S = 60.0
START_S = 30.0
EXITS_EXPECTED = {0, 6}
"""Of an actor: drained, or too long without a server."""
LOOK_S = 1.0
NEAR_S = 5.0
"""Faults within this time of a request are told with its story."""
BROKE = {"bus disconnected", "bus lost", "no connection to NATS"}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long everybody waits."""

    deadline_s: float = 6.0
    """The callers', told to the actors."""
    late_s: float = 20.0
    """For what is late on its way when the last fault is over. Long, because a busy machine is no
    fault of the actor's, and free of charge, because nobody waits once all is explained.
    """
    bus_lost_s: float = 6.0


@dataclass(slots=True)
class Outcome:
    """What a run gave."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    """Whatever must not be."""
    unsent: int = 0
    exits: Counter[str] = field(default_factory=Counter)
    moves: int = 0
    steps_out: int = 0


async def chaos(
    folder: Path,
    *,
    seconds: float,
    seed: int,
    plan: Plan,
    patience: Patience,
    trace: bool = False,
) -> Outcome:
    """Run servers, actors and callers for so long, and judge every request."""
    with ExitStack() as stack:
        nodes = stack.enter_context(cluster_of_three(folder, trace=trace))
        settings = settings_of(nodes, patience)
        actors = [KeptActor(folder, f"a{n}", settings, batch_s=BATCH_S) for n in range(3)]
        running = [asyncio.create_task(actor.run()) for actor in actors]
        try:
            return await _run(nodes, actors, seconds=seconds, seed=seed, plan=plan, wait=patience)
        finally:
            await asyncio.gather(*(actor.stop() for actor in actors))
            await asyncio.gather(*running)


def settings_of(nodes: Sequence[Node], patience: Patience) -> dict[str, str]:
    """Give the settings of the actors: small limits, so that a flood is one."""
    return {
        "SEMIF_NATS_URL": ",".join(node.url for node in nodes),
        "SEMIF_BUS_LOST_S": str(patience.bus_lost_s),
        "SEMIF_HEARTBEAT_S": "0.5",
        "SEMIF_QUEUE_JOBS_MAX": "48",
        "SEMIF_BATCH_ROWS_MAX": str(BATCH_ROWS),
        "SEMIF_DRAIN_S": "5",
    }


async def _run(
    nodes: list[Node],
    actors: list[KeptActor],
    *,
    seconds: float,
    seed: int,
    plan: Plan,
    wait: Patience,
) -> Outcome:
    async with asyncio.timeout(START_S):
        for actor in actors:
            await actor.ready(1)
    requests: list[Request] = []
    names = {node.port: node.name for node in nodes}
    urls = [node.url for node in nodes]
    faults = Faults(plan, seed, nodes=nodes, actors=actors)
    async with callers_at(urls, names, requests, timeout_s=wait.deadline_s) as callers:
        load = Load(callers, PER_S)
        loading = asyncio.create_task(load.run())
        await faults.run(load, seconds=seconds)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        outcome = await _settle(
            lambda: _judge(requests, _evidence(actors, callers, faults.happened)), wait.late_s
        )
    outcome.unsent = load.unsent
    _count_actors(actors, outcome)
    return outcome


async def _settle(look: Callable[[], Outcome], within_s: float) -> Outcome:
    """Judge all, again and again until none is lost or the time is over."""
    until_s = time.time() + within_s
    while look().counts[LOST] and time.time() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(LOOK_S)  # for a second reply
    return look()


def _evidence(
    actors: Sequence[KeptActor], callers: Sequence[Caller], faults: Sequence[Fault]
) -> Evidence:
    return Evidence(
        faults=faults,
        caller_breaks={caller.number: caller.breaks for caller in callers},
        actor_breaks={
            actor.name: [line.at_s for line in actor.lines if line.event in BROKE]
            for actor in actors
        },
        read=_by_request(actors, "read"),
        begun=_by_request(actors, "begun"),
    )


def _by_request(actors: Sequence[KeptActor], what: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for actor in actors:
        for number in actor.noted(what):
            found.setdefault(number, []).append(actor.name)
    return found


def _judge(requests: Sequence[Request], evidence: Evidence) -> Outcome:
    outcome = Outcome(faults=Counter(fault.kind for fault in evidence.faults))
    for request in requests:
        found = verdict(request, evidence)
        outcome.counts[found] += 1
        if found in BAD:
            outcome.unexplained.append(_story(request, found, evidence))
    return outcome


def _story(request: Request, found: str, evidence: Evidence) -> str:
    """Tell what is known of a request that should not be."""
    near = [
        f"{fault.kind} {fault.target} {fault.start_s - request.sent_s:+.3f}.."
        f"{fault.end_s - request.sent_s:+.3f}"
        for fault in evidence.faults
        if fault.start_s < request.sent_s + NEAR_S and fault.end_s > request.sent_s - NEAR_S
    ]
    read = ", ".join(evidence.read.get(request.number, ())) or "nobody"
    begun = ", ".join(evidence.begun.get(request.number, ())) or "nobody"
    return (
        f"{found}: request {request.number} of caller {request.caller} at {request.sent_s:.3f}, "
        f"replies {request.replies}, "
        f"read by {read}, begun by {begun}; around it: {'; '.join(near) or 'no fault'}"
    )


def _count_actors(actors: Sequence[KeptActor], outcome: Outcome) -> None:
    for actor in actors:
        outcome.moves += actor.times("bus moved")
        outcome.steps_out += actor.times("out of the queue group: full")
        for ended in actor.exits:
            outcome.exits[f"{ended.code}{' (asked)' if ended.asked else ''}"] += 1
            if not ended.asked and ended.code not in EXITS_EXPECTED:
                outcome.unexplained.append(
                    f"{actor.name} ended with {ended.code} at {ended.at_s:.3f}"
                )
        bugs = [line for line in actor.lines if "bug" in line.event or "Traceback" in line.event]
        outcome.unexplained += [f"{actor.name} logged: {line.event}" for line in bugs]


def told(outcome: Outcome, seed: int) -> str:
    """Give the counts, for people."""
    total = sum(outcome.counts.values())
    share = outcome.counts[ANSWERED] / max(total, 1)
    lines = [f"seed {seed}: {total} requests, {share:.1%} answered"]
    for title, counts in (
        ("faults", outcome.faults),
        ("requests", outcome.counts),
        ("exits of actors", outcome.exits),
    ):
        lines += [f"{title}:", *(f"{count:9d}  {name}" for name, count in sorted(counts.items()))]
    lines.append(f"moves {outcome.moves}, steps out {outcome.steps_out}, not sent {outcome.unsent}")
    lines += outcome.unexplained
    lines.append("NOT WELL" if outcome.unexplained else "nothing lost, nothing doubled")
    return "\n".join(lines)


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kill-actors", action="store_true", help="SIGKILL actors too")
    parser.add_argument("--trace", action="store_true", help="servers log every message")
    parser.add_argument("--folder", type=Path, help="where logs stay; default: nowhere")
    chosen = parser.parse_args()
    plan = Plan(of_actors=(DRAIN, ACTOR_KILL) if chosen.kill_actors else (DRAIN,))
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        outcome = asyncio.run(
            chaos(
                folder,
                seconds=chosen.seconds,
                seed=chosen.seed,
                plan=plan,
                patience=Patience(),
                trace=chosen.trace,
            )
        )
    print(told(outcome, chosen.seed))  # noqa: T201 - what it is for
    return 1 if outcome.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
