"""The sides of the bus measurements, each in a process of its own.

``echo`` and ``pull``: nats-py and nothing else. ``instant``: the real server around an engine that
does nothing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import nats
import uvloop
from nats.aio.msg import Msg

from actor import settings
from actor.engine.base import DecisionResult, Outcome, Prepared, Prompt, Question, Scores, Work
from actor.engine.ledger import Ledger
from actor.service import serve
from actor.telemetry import logs
from schemas.decision import ModelInfo
from schemas.health import EngineHealth
from schemas.subjects import (
    CHOICE_HEADER,
    EVENT_ID_HEADER,
    EVENT_SUBJECT_HEADER,
    HOPS_HEADER,
    MARGIN_HEADER,
    PROBABILITY_HEADER,
    PROOF_HEADER,
    RULE_HEADER,
    SURE_HEADER,
)

__all__ = ["InstantEngine", "main"]

NO_PROMPT = Prompt(ids=(0,), state_tokens=1, sha256="0" * 64)
NO_MODEL = ModelInfo(
    source="none", revision="none", dtype="none", torch_version="none", transformers_version="none"
)


PULL_BATCH = 256
PULL_TIMEOUT_S = 30.0
PULL_HEADERS = {
    RULE_HEADER: "one",
    EVENT_SUBJECT_HEADER: "bench.read.one",
    HOPS_HEADER: "1",
    EVENT_ID_HEADER: "BENCH.10000.1796025600123456789",
    CHOICE_HEADER: "o0",
    PROBABILITY_HEADER: "0.500000",
    MARGIN_HEADER: "0.000000",
    SURE_HEADER: "true",
    PROOF_HEADER: "0" * 64,
}
"""Those of a decision."""


class InstantEngine:
    """An engine that finds every option equally likely, after ``batch_s`` seconds (0: at once)."""

    scorer = "instant"
    model = NO_MODEL

    def __init__(self, batch_s: float = 0.0) -> None:
        self._batch_s = batch_s

    def prepare(self, work: Work) -> Prepared:
        """Give every question the same prompt of one token."""
        return Prepared.of(work, work.questions, (NO_PROMPT,) * len(work.questions))

    def score(self, batch: Sequence[Prepared]) -> list[Outcome]:
        """Answer each request."""
        if self._batch_s:
            time.sleep(self._batch_s)
        return [
            Scores(
                results=tuple(map(self._result, prepared.questions)),
                forward_ms=0.0,
                batch_rows=len(batch),
                prefix_tokens_reused=0,
            )
            for prepared in batch
        ]

    def canary(self) -> None:
        """Sing the only song it knows."""

    def health(self) -> EngineHealth:
        """Give a device that is none."""
        return EngineHealth(
            model=NO_MODEL,
            scorer=self.scorer,
            device="none",
            device_name="none",
            memory_allocated_bytes=0,
            memory_reserved_bytes=0,
            memory_cap_bytes=0,
            memory_resting_bytes=0,
            tokens_max=1,
            attention="none",
            prefix_cache=None,
        )

    def _result(self, question: object) -> DecisionResult:
        assert isinstance(question, Question)  # noqa: S101 - the bench asks nothing invalid
        count = len(question.options)
        return DecisionResult(
            id=question.id,
            option_ids=tuple(option.id for option in question.options),
            probabilities=(1 / count,) * count,
            option_logits=(0.0,) * count,
            input_tokens=1,
            prompt_sha256=NO_PROMPT.sha256,
            prompt_version="none",
            model=NO_MODEL,
            readout="none",
            probability_status="none: every option is equally likely",
        )


async def echo(url: str, subject: str) -> None:
    """Answer every message with itself, in the shortest program that nats-py allows."""
    client = await nats.connect(url)

    async def on_message(message: Msg) -> None:
        await client.publish(message.reply, message.data)

    await client.subscribe(subject, cb=on_message)
    await client.flush()
    await client.flush()  # the first one overtakes the SUB
    print("listening", flush=True)  # noqa: T201 - what the parent waits for
    await asyncio.Event().wait()


async def pull(url: str, stream: str, durable: str, subject: str, at_once: int) -> None:
    """Publish every event of a consumer and have it acknowledged, ``at_once`` at a time.

    What a rule in mode ``annotate`` does but for the decision: as many headers, and its promise,
    that an event is done when the server has confirmed so. A loop that does not wait for that is
    several times as fast, and loses what a broken connection eats.
    """
    client = await nats.connect(url)
    subscription = await client.jetstream().pull_subscribe_bind(durable, stream)
    print("listening", flush=True)  # noqa: T201 - what the parent waits for

    async def forward(message: Msg) -> None:
        await client.publish(subject, message.data, headers=PULL_HEADERS)
        await message.ack_sync(timeout=PULL_TIMEOUT_S)

    while True:
        messages = await subscription.fetch(PULL_BATCH, timeout=PULL_TIMEOUT_S)
        for start in range(0, len(messages), at_once):
            together = messages[start : start + at_once]
            if at_once == 1:
                await forward(together[0])
            else:
                await asyncio.gather(*map(forward, together))


def _serve_instant(batch_s: float) -> int:
    found, _ = settings.load()
    logs.set_up(found)

    def prove(_settings: settings.Settings, _ledger: Ledger) -> InstantEngine:
        return InstantEngine(batch_s)

    return uvloop.run(serve(found, prove))


def main(arguments: Sequence[str]) -> int:
    """Run ``echo``, ``pull`` or ``instant`` with its arguments until killed."""
    match list(arguments):
        case ["echo", url, subject]:
            uvloop.run(echo(url, subject))
            return 0
        case ["pull", url, stream, durable, subject, at_once]:
            uvloop.run(pull(url, stream, durable, subject, int(at_once)))
            return 0
        case ["instant", *seconds]:
            return _serve_instant(float(seconds[0]) if seconds else 0.0)
    raise SystemExit(
        "usage: responders.py echo URL SUBJECT | instant [SECONDS]"
        " | pull URL STREAM DURABLE SUBJECT AT_ONCE"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
