"""An actor process that needs no weights and writes down each request it works on.

``journal_actor.py FILE SECONDS``: the real service with settings from the environment, around an
engine that takes so many seconds for a batch. FILE gets a line for each request when it is read
(``read ID``) and when the engine begins it (``begun ID``): a request whose reply was lost can be
told from one that no actor ever had.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from actor import settings
from actor.cli.bench.responders import InstantEngine
from actor.engine.base import Outcome, Prepared, Work
from actor.engine.ledger import Ledger
from actor.service import Exit, serve
from actor.telemetry import logs


class JournalEngine(InstantEngine):
    """Finds every option equally likely, and remembers who asked."""

    def __init__(self, journal: Path, batch_s: float) -> None:
        super().__init__(batch_s)
        # Written at once: what a SIGKILL cuts short is in the file.
        self._file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def prepare(self, work: Work) -> Prepared:
        """Write down the request."""
        self._note("read", work.ids)
        return super().prepare(work)

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """Write down each request, then answer it."""
        self._note("begun", [each for prepared in batch for each in prepared.work.ids])
        return super().score(batch)

    def _note(self, what: str, ids: Sequence[str]) -> None:
        os.write(self._file, "".join(f"{what} {each}\n" for each in ids).encode())


def main(journal: str, batch_s: str) -> Exit:
    """Serve until told to stop."""
    found, _ = settings.load()
    logs.set_up(found)

    def prove(_settings: settings.Settings, _ledger: Ledger) -> JournalEngine:
        return JournalEngine(Path(journal), float(batch_s))

    return uvloop.run(serve(found, prove))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
