"""Random faults, drawn from a seed: which come, in which order, for how long."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from harness.callers import Load
from harness.cluster import Node
from harness.kept_actors import KeptActor

KILL, PAUSE, LAME_DUCK = "server kill", "server pause", "server lame duck"
FLOOD, DRAIN, ACTOR_KILL = "flood", "actor drain", "actor kill"

FLOOD_TIMES = 10
FLOOD_S = 2.0
DOWN_S = (1.0, 3.0)
PAUSE_S = (1.0, 4.0)
LAME_DUCK_S = 15.0
"""Longer than a node in lame duck mode takes to send everybody away."""


@dataclass(slots=True)
class Fault:
    """One fault and its time."""

    kind: str
    target: str
    start_s: float
    """Seconds since 1970."""
    end_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Plan:
    """Which faults may come, and the pauses between them."""

    of_nodes: tuple[str, ...] = (KILL, PAUSE, LAME_DUCK)
    of_actors: tuple[str, ...] = (DRAIN,)
    floods: bool = True
    between_s: tuple[float, float] = (1.0, 3.0)


class Faults:
    """Makes the faults, and writes down when each began and ended.

    Nodes fail one at a time: a cluster of three is made to survive that. Actors fail one at a time
    too, for two must be left; and both at the same time as each other, and as a flood.
    """

    def __init__(
        self, plan: Plan, seed: int, *, nodes: Sequence[Node], actors: Sequence[KeptActor]
    ) -> None:
        self._plan = plan
        self._seed = seed
        self._nodes = nodes
        self._actors = actors
        self.happened: list[Fault] = []

    async def run(self, load: Load, *, seconds: float) -> None:
        """Let faults happen for so long, and end the last ones."""
        until_s = time.time() + seconds
        async with asyncio.TaskGroup() as group:
            if self._plan.of_nodes:
                group.create_task(self._series("nodes", until_s, self._node_fault))
            if self._plan.of_actors:
                group.create_task(self._series("actors", until_s, self._actor_fault))
            if self._plan.floods:
                group.create_task(self._series("floods", until_s, self._flood_of(load)))
            group.create_task(asyncio.sleep(seconds))

    async def _series(
        self,
        name: str,
        until_s: float,
        make: Callable[[random.Random], Coroutine[None, None, None]],
    ) -> None:
        # A generator for each series: what it draws does not depend on the others' timing.
        draws = random.Random(f"{self._seed} {name}")  # noqa: S311 - to be drawn again
        while True:
            await asyncio.sleep(draws.uniform(*self._plan.between_s))
            if time.time() >= until_s:
                return
            await make(draws)

    async def _node_fault(self, draws: random.Random) -> None:
        node, kind = draws.choice(self._nodes), draws.choice(self._plan.of_nodes)
        fault = self._begin(kind, node.name)
        if kind == PAUSE:
            node.send(signal.SIGSTOP)
            await asyncio.sleep(draws.uniform(*PAUSE_S))
            node.send(signal.SIGCONT)
        else:
            if kind == LAME_DUCK:
                node.send(signal.SIGUSR2)
                async with asyncio.timeout(LAME_DUCK_S):
                    await node.ended()
            node.kill()
            await asyncio.sleep(draws.uniform(*DOWN_S))
            await asyncio.to_thread(node.start)
        fault.end_s = time.time()

    async def _actor_fault(self, draws: random.Random) -> None:
        actor, kind = draws.choice(self._actors), draws.choice(self._plan.of_actors)
        fault = self._begin(kind, actor.name)
        if kind == DRAIN:
            await actor.restarted(signal.SIGTERM)
            fault.end_s = time.time()
        else:
            await actor.restarted(signal.SIGKILL)
            fault.end_s = actor.exits[-1].at_s  # from here on its server knows

    def _flood_of(self, load: Load) -> Callable[[random.Random], Coroutine[None, None, None]]:
        async def flood(_draws: random.Random) -> None:
            fault = self._begin(FLOOD, "callers")
            load.times = FLOOD_TIMES
            await asyncio.sleep(FLOOD_S)
            load.times = 1
            fault.end_s = time.time()

        return flood

    def _begin(self, kind: str, target: str) -> Fault:
        fault = Fault(kind, target, time.time())
        self.happened.append(fault)
        return fault
