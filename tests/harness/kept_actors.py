"""Actor processes that are kept running, as a supervisor keeps a service, and what they log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

RESTART_S = 0.5
"""Pause before a restart. systemd's unit waits 15 s; an hour is a minute here."""
PROGRAM = Path(__file__).with_name("journal_actor.py")


class Line(NamedTuple):
    """A line of an actor's log."""

    at_s: float
    """Seconds since 1970."""
    event: str


class Exited(NamedTuple):
    """The end of a process."""

    at_s: float
    code: int
    """Negative: the signal that killed it."""
    asked: bool
    """True after a SIGTERM or SIGKILL of ours."""


class KeptActor:
    """One actor and its successors, under one name."""

    def __init__(
        self, folder: Path, name: str, settings: Mapping[str, str], *, batch_s: float
    ) -> None:
        self.name = name
        self.journal = folder / f"{name}.journal"
        self.journal.touch()
        self._log = folder / f"{name}.log"
        self._batch_s = batch_s
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMIF_")}
        self._environment = environment | {"SEMIF_INSTANCE": name} | dict(settings)
        self._process: asyncio.subprocess.Process | None = None
        self._asked = False
        self._stopping = False
        self._news = asyncio.Condition()
        self.lines: list[Line] = []
        self.exits: list[Exited] = []

    async def run(self) -> None:
        """Start it, and start it again, until :meth:`stop`."""
        with self._log.open("ab") as log:
            while not self._stopping:
                self._asked = False
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, str(PROGRAM), str(self.journal), str(self._batch_s)),
                    env=self._environment,
                    stderr=asyncio.subprocess.PIPE,
                )
                assert self._process.stderr is not None
                async for line in self._process.stderr:
                    log.write(line)
                    log.flush()
                    await self._read(line)
                code = await self._process.wait()
                self.exits.append(Exited(time.time(), code, self._asked))
                await self._tell()
                await asyncio.sleep(0 if self._asked else RESTART_S)

    async def ready(self, times: int) -> None:
        """Wait until it has said ``ready`` so often."""
        async with self._news:
            await self._news.wait_for(lambda: self.times("ready") >= times)

    async def restarted(self, number: signal.Signals) -> None:
        """Send a signal that ends it, and wait until its successor is ready."""
        before, ended = self.times("ready"), len(self.exits)
        self.end(number)
        async with self._news:
            await self._news.wait_for(lambda: len(self.exits) > ended)
        await self.ready(before + 1)

    async def stop(self) -> None:
        """Drain it for good, or what is left of it."""
        ended = len(self.exits)
        self._stopping = True
        self.end(signal.SIGTERM)
        async with self._news:
            await self._news.wait_for(lambda: len(self.exits) > ended)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends it."""
        self._asked = True
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def noted(self, what: str) -> list[int]:
        """Give the numbers of the requests that were ``read`` or ``begun``, by its journal."""
        words = self.journal.read_text(encoding="ascii").split()
        return [int(n) for word, n in zip(words[::2], words[1::2], strict=True) if word == what]

    def times(self, event: str) -> int:
        """Count the log lines with this text."""
        return sum(line.event == event for line in self.lines)

    async def _read(self, line: bytes) -> None:
        try:
            found = json.loads(line)
            at_s = datetime.fromisoformat(found["timestamp"]).timestamp()
        except (ValueError, KeyError):  # of a library, or a traceback
            self.lines.append(Line(time.time(), line.decode(errors="replace").strip()))
        else:
            self.lines.append(Line(at_s, found["event"]))
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()
