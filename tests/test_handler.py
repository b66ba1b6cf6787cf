"""One reply for each request, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from actor.engine.base import DecisionResult, Scores
from actor.handler import Handler
from actor.scheduling.admission import Admission
from actor.scheduling.gpu_thread import GpuThread
from actor.scheduling.scheduler import Scheduler
from actor.settings import Settings
from actor.telemetry.meter import Meter
from actor.wire import Incoming, Reply
from schemas.decision import ModelInfo
from schemas.errors import OutOfMemory, ScoringFailed, SemifError

OPTIONS = [{"id": "a", "description": "First"}, {"id": "b", "description": "Second"}]
MODEL = ModelInfo(
    source="m", revision="r", dtype="bfloat16", torch_version="2", transformers_version="5"
)
RESULT = DecisionResult(
    id="d",
    option_ids=("a", "b"),
    probabilities=(0.75, 0.25),
    option_logits=(2.0, 0.9),
    input_tokens=9,
    prompt_sha256="0",
    prompt_version="v",
    model=MODEL,
    readout="r",
    probability_status="s",
)
GOOD = Scores((RESULT,), 1.0, 1, 0)


class Rig:
    """A handler over a scripted engine, with everything real between them."""

    def __init__(self, engine: ScriptedEngine, configured: Settings) -> None:
        self.engine = engine
        self.meter = Meter()
        self.gpu = GpuThread()
        self.admission = Admission(
            jobs_max=configured.queue_jobs_max, bytes_max=configured.queue_bytes_max
        )
        self.scheduler = Scheduler(engine, self.gpu, self.admission, canary_s=3600)
        self.handler = Handler(
            configured, engine, self.scheduler, self.admission, self.meter, proof="p"
        )
        self.task = asyncio.create_task(self.scheduler.run())

    async def handle(self, body: bytes, *, shared: bool = False, **headers: str) -> Reply:
        """Send a body with headers; underscores in their names stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        now_s = asyncio.get_running_loop().time()
        return await self.handler.handle(Incoming(shared, body, named, now_s, 1_048_576))

    async def close(self) -> None:
        """End everything."""
        self.engine.gate.set()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.gpu.stop(within_s=5)
        self.handler.close()


Make = Callable[..., Rig]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Give a maker of rigs that are closed at the end."""
    rigs: list[Rig] = []

    def build(engine: ScriptedEngine | None = None, **configured: Any) -> Rig:
        rigs.append(Rig(engine or ScriptedEngine({"s": GOOD}), Settings(**configured)))
        return rigs[-1]

    yield build
    for rig in rigs:
        await rig.close()


def request(state: Any = "s", **changes: Any) -> bytes:
    """Give the body of a good request."""
    body = {"state": state, "question": "q", "options": OPTIONS} | changes
    return msgspec.json.encode(body)


def code_of(reply: Reply) -> str:
    """Give the code of an error reply, its headers checked; or ``answered``."""
    body = msgspec.json.decode(reply.payload)
    if reply.headers is None:
        assert "error" not in body
        return "answered"
    assert reply.headers["Nats-Service-Error-Code"] == str(body["error"]["status"])
    return str(body["error"]["code"])


async def test_a_good_request_is_answered_and_counted(make: Make) -> None:
    """With the choice, who served it and where the time went."""
    rig = make()

    body = msgspec.json.decode((await rig.handle(request())).payload)

    assert (body["choice"], body["margin"]) == ("a", 0.5)
    assert body["served_by"] == {
        "instance": Settings().instance,
        "scorer": "scripted",
        "proof": "p",
    }
    assert body["timing"]["total_ms"] >= body["timing"]["queue_ms"] >= 0
    assert (rig.meter.answered, rig.meter.refused) == (1, {})


@pytest.mark.parametrize("error", [OutOfMemory(), ScoringFailed()], ids=lambda e: str(e.code))
async def test_errors_of_the_engine_are_the_reply(make: Make, error: SemifError) -> None:
    """Under their own code, and counted under it."""
    rig = make(ScriptedEngine({"s": error}))

    assert code_of(await rig.handle(request())) == error.code
    assert rig.meter.refused == {error.code: 1}


async def test_a_bug_in_the_engines_preparation_is_a_reply_without_its_text(make: Make) -> None:
    """Nobody foresaw it, the caller still hears; what it says stays in the log."""
    engine = ScriptedEngine()
    engine.prepare_error = ZeroDivisionError("a secret")
    rig = make(engine)

    reply = await rig.handle(request())

    assert code_of(reply) == "scoring_failed"
    assert b"secret" not in reply.payload


async def test_a_deadline_in_the_queue_is_answered_on_time_and_never_scored(make: Make) -> None:
    """While another request holds the GPU, the reply leaves at the deadline."""
    rig = make(ScriptedEngine({"s": GOOD, "held": GOOD}))
    rig.engine.gate.clear()
    held = asyncio.create_task(rig.handle(request("held")))
    await asyncio.to_thread(rig.engine.entered.wait)

    late = await rig.handle(request("late"), semif_timeout_ms="20")

    assert code_of(late) == "deadline_exceeded"
    assert not held.done()
    rig.engine.gate.set()
    assert code_of(await held) == "answered"
    assert rig.engine.scored == ["held"]


async def test_a_deadline_while_the_model_works_is_answered_on_time(make: Make) -> None:
    """The caller hears at its deadline; the engine finishes for nobody, and goes on."""
    rig = make()
    rig.engine.gate.clear()

    late = await rig.handle(request(), semif_timeout_ms="20")

    assert code_of(late) == "deadline_exceeded"
    rig.engine.gate.set()
    assert code_of(await rig.handle(request())) == "answered"
    assert rig.admission.jobs == 0


async def test_a_cancelled_request_is_answered_draining(make: Make) -> None:
    """The drain's deadline cancels the task; its caller still gets the one reply."""
    rig = make()
    rig.engine.gate.clear()
    task = asyncio.create_task(rig.handle(request()))
    await asyncio.to_thread(rig.engine.entered.wait)

    task.cancel()

    assert code_of(await task) == "draining"
    assert rig.admission.jobs == 0


async def test_a_closed_scheduler_is_draining(make: Make) -> None:
    """A message that arrives after the unsubscribing was sent."""
    rig = make()
    rig.scheduler.close()

    assert code_of(await rig.handle(request())) == "draining"


async def test_over_the_queues_limits_is_overloaded(make: Make) -> None:
    """Refused at once, with a time to come back; the one that waits is answered."""
    rig = make(queue_jobs_max=1)
    rig.engine.gate.clear()
    held = asyncio.create_task(rig.handle(request()))
    await asyncio.to_thread(rig.engine.entered.wait)

    refused = await rig.handle(request())

    assert code_of(refused) == "overloaded"
    assert msgspec.json.decode(refused.payload)["error"]["retry_after_ms"] >= 1
    assert code_of(rig.handler.refuse_unread()) == "overloaded"
    rig.engine.gate.set()
    assert code_of(await held) == "answered"


BODIES = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(
                st.sampled_from(["state", "question", "options", "decisions", "id"]), inner
            ),
        ),
        max_leaves=12,
    ).map(msgspec.json.encode),
)
HEADERS = st.dictionaries(
    st.sampled_from(["content_type", "semif_timeout_ms", "nats_msg_id", "traceparent"]),
    st.sampled_from(["", "1", "999", "application/json", "application/msgpack", "\u00fc", "x/y"]),
)


@settings(max_examples=200, deadline=None)
@given(body=BODIES, headers=HEADERS, shared=st.booleans())
def test_whatever_comes_there_is_one_reply(
    body: bytes, headers: dict[str, str], *, shared: bool
) -> None:
    """Random bodies and headers: an answer or an error of the table, never an exception."""

    async def ask() -> Reply:
        rig = Rig(ScriptedEngine({}, default=GOOD), Settings())
        try:
            return await rig.handle(body, shared=shared, **headers)
        finally:
            await rig.close()

    reply = asyncio.run(ask())

    assert reply.payload
    if reply.headers and "Nats-Service-Error-Code" in reply.headers:
        assert reply.headers["Nats-Service-Error-Code"] in {"400", "413", "415", "422"}
