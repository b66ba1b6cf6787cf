"""One reply for each request, whatever happens on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError as FutureCancelledError
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from actor.engine.base import DecisionResult, Prepared, Scores, Work
from actor.handler import Handler
from actor.scheduling.admission import Admission
from actor.scheduling.gpu_thread import GpuThread
from actor.scheduling.lanes import Lanes
from actor.scheduling.scheduler import Scheduler
from actor.settings import Settings
from actor.telemetry.endpoint_stats import EndpointCounters
from actor.telemetry.meter import Meter
from actor.wire import Incoming, Reply
from schemas.decision import ModelInfo
from schemas.errors import ControlText, OutOfMemory, ScoringFailed, SemifError

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
        self.counters = EndpointCounters(("score", "score_shared"))
        self.gpu = GpuThread()
        self.admission = Admission(
            jobs_max=configured.queue_jobs_max,
            bytes_max=configured.queue_bytes_max,
            tokens_max=configured.queue_tokens_max,
        )
        lanes = Lanes(tokens_max=configured.batch_tokens_max, rows_max=configured.batch_rows_max)
        self.scheduler = Scheduler(engine, self.gpu, self.admission, lanes, canary_s=3600)
        self.handler = Handler(
            configured,
            engine,
            self.scheduler,
            admission=self.admission,
            meter=self.meter,
            counters=self.counters,
            proof="p",
        )
        self.task = asyncio.create_task(self.scheduler.run())

    async def handle(
        self, body: bytes, *, shared: bool = False, caller: str = "caller", **headers: str
    ) -> Reply:
        """Send a body with headers; underscores in their names stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        now_s = time.monotonic()
        return await self.handler.handle(Incoming(shared, body, named, now_s, 1_048_576, caller))

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


class Panic(BaseException):
    """What a panic in a tokenizer's Rust looks like from Python: no Exception."""


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("a secret"),
        StopIteration("a secret"),
        TimeoutError("a secret"),
        FutureCancelledError("a secret"),
        asyncio.CancelledError("a secret"),
        Panic("a secret"),
        SystemExit("a secret"),
    ],
    ids=lambda error: f"{type(error).__module__}.{type(error).__name__}",
)
async def test_a_bug_in_the_engines_preparation_is_a_reply_without_its_text(
    make: Make, error: BaseException
) -> None:
    """Nobody foresaw it, the caller still hears, and not at its deadline; the log has the text."""
    engine = ScriptedEngine({"s": GOOD})
    engine.prepare_error = error
    rig = make(engine)

    reply = await rig.handle(request())

    assert code_of(reply) == "scoring_failed"
    assert b"secret" not in reply.payload
    assert not any("secret" in value for value in (reply.headers or {}).values())
    assert (rig.meter.refused, rig.admission.jobs) == ({"scoring_failed": 1}, 0)
    engine.prepare_error = None
    assert code_of(await rig.handle(request())) == "answered"


ROWS: dict[str, tuple[bytes, dict[str, str], int, str | None]] = {
    "malformed": (b"{", {}, 400, None),
    "too_large": (b" " * 1_048_577, {}, 413, None),
    "unsupported_media_type": (b"", {"content_type": "text/plain"}, 415, "Content-Type"),
    "invalid": (b'{"question":"q","options":[]}', {}, 422, "state"),
    "invalid header": (b"{}", {"semif_timeout_ms": "soon"}, 422, "Semif-Timeout-Ms"),
}


@pytest.mark.parametrize("row", ROWS)
async def test_what_the_caller_did_wrong_is_named(make: Make, row: str) -> None:
    """Each row of the error table that a message alone can cause, before any queue."""
    body, headers, status, field = ROWS[row]
    rig = make()

    reply = await rig.handle(body, shared=False, **headers)

    error = msgspec.json.decode(reply.payload)["error"]
    code = row.removesuffix(" header")
    assert (code_of(reply), error["status"], error.get("field")) == (code, status, field)
    assert error["retryable"] is False
    assert (rig.meter.refused, rig.engine.scored) == ({code: 1}, [])


async def test_a_prompt_that_the_engine_refuses_is_the_reply(make: Make) -> None:
    """What prepare refuses, of a request with one question, is the error of the request."""
    engine = ScriptedEngine()
    engine.prepare_error = ControlText(field="state")
    rig = make(engine)

    reply = await rig.handle(request())

    assert code_of(reply) == "control_text"
    assert msgspec.json.decode(reply.payload)["error"]["field"] == "state"


async def test_a_reply_that_the_server_would_not_carry_is_too_large(make: Make) -> None:
    """Refused after the scoring, in place of a message that ends the connection."""
    rig = make()
    now_s = time.monotonic()

    reply = await rig.handler.handle(Incoming(False, request(), {}, now_s, 600, "caller"))

    assert code_of(reply) == "too_large"
    assert (rig.meter.answered, rig.meter.refused) == (0, {"too_large": 1})


async def test_an_error_reply_is_in_the_callers_format(make: Make) -> None:
    """MessagePack asked, MessagePack answered; an unknown format is refused in JSON."""
    rig = make()

    packed = await rig.handle(b"\xc1", content_type="application/msgpack")
    unknown = await rig.handle(b"\xc1", content_type="image/png")

    assert msgspec.msgpack.decode(packed.payload)["error"]["code"] == "malformed"
    assert (packed.headers or {})["Content-Type"] == "application/msgpack"
    assert code_of(unknown) == "unsupported_media_type"
    assert "Content-Type" not in (unknown.headers or {})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_the_death_of_the_engine_is_one_reply_for_each(make: Make) -> None:
    """The running request and the waiting ones hear, and so does everyone who comes later."""
    rig = make(ScriptedEngine({"dies": SystemExit}))
    rig.engine.gate.clear()
    dying = asyncio.create_task(rig.handle(request("dies")))
    await asyncio.to_thread(rig.engine.entered.wait)
    waiting = [asyncio.create_task(rig.handle(request())) for _ in range(3)]
    rig.engine.gate.set()

    codes = [code_of(reply) for reply in await asyncio.gather(dying, *waiting)]

    assert codes[0] == "scoring_failed"
    assert set(codes[1:]) == {"draining"}
    assert code_of(await rig.handle(request())) == "draining"
    assert rig.admission.jobs == 0


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


async def test_a_deadline_that_passes_while_nobody_looks_is_answered_as_one(make: Make) -> None:
    """The timer of the loop is late, the clock is not: with an empty queue it is no overload."""
    rig = make()

    async def prepare(work: Work) -> Prepared:
        time.sleep(0.005)  # noqa: ASYNC251 - as a busy loop, it keeps the timer from being heard
        return rig.engine.prepare(work)

    rig.handler._encoder.prepare = prepare  # type: ignore[method-assign]
    late = await rig.handle(request(), semif_timeout_ms="1")

    assert code_of(late) == "deadline_exceeded"


async def test_a_deadline_while_the_model_works_is_answered_on_time(make: Make) -> None:
    """The caller hears at its deadline; the engine finishes for nobody, and goes on."""
    rig = make()
    rig.engine.gate.clear()

    late = await rig.handle(request(), semif_timeout_ms="20")

    assert code_of(late) == "deadline_exceeded"
    assert not rig.engine.gate.is_set()  # the reply came while the engine was held
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
    unread = Incoming(False, request(), {}, time.monotonic(), 1_048_576, "caller")
    assert code_of(rig.handler.refuse_unread(unread)) == "overloaded"
    rig.engine.gate.set()
    assert code_of(await held) == "answered"


async def test_an_overload_is_told_before_the_body_is_read(make: Make) -> None:
    """A refusal costs no decoding: a body that is no JSON is ``overloaded`` all the same."""
    rig = make(queue_jobs_max=1)
    rig.engine.gate.clear()
    held = asyncio.create_task(rig.handle(request()))
    await asyncio.to_thread(rig.engine.entered.wait)

    assert code_of(await rig.handle(b"{")) == "overloaded"

    rig.engine.gate.set()
    assert code_of(await held) == "answered"
    assert code_of(await rig.handle(b"{")) == "malformed"
    assert rig.admission.jobs == 0


async def test_over_the_limit_of_tokens_is_overloaded(make: Make) -> None:
    """Two requests of ten tokens each, room for 19: the second is refused once it is encoded."""
    rig = make(queue_tokens_max=19)
    rig.engine.gate.clear()
    held = asyncio.create_task(rig.handle(request()))
    await asyncio.to_thread(rig.engine.entered.wait)
    assert rig.admission.tokens == 10

    error = msgspec.json.decode((await rig.handle(request())).payload)["error"]

    assert error["code"] == "overloaded"
    assert error["message"] == "The queue is full by tokens, the limit is 19 tokens."
    assert error["retry_after_ms"] >= 1
    rig.engine.gate.set()
    assert code_of(await held) == "answered"
    assert (rig.admission.jobs, rig.admission.tokens) == (0, 0)


async def test_a_request_over_the_limit_of_tokens_is_let_in_alone(make: Make) -> None:
    """Ten tokens where nine are allowed: it could never enter otherwise."""
    rig = make(queue_tokens_max=9)

    assert code_of(await rig.handle(request())) == "answered"


async def test_callers_take_turns(make: Make) -> None:
    """Two rows a batch: the single request of another caller is in the first, not the last."""
    engine = ScriptedEngine({}, default=GOOD)
    rig = make(engine, batch_rows_max=2)
    engine.gate.clear()
    tasks = [asyncio.create_task(rig.handle(request("held")))]
    await asyncio.to_thread(engine.entered.wait)
    tasks += [asyncio.create_task(rig.handle(request(f"a{n}"), caller="a")) for n in range(5)]
    tasks += [asyncio.create_task(rig.handle(request("b"), caller="b"))]
    await asyncio.sleep(0)
    # Behind all of them on the one worker: now they are encoded, and wait.
    await rig.handler._encoder.prepare(Work(False, "last", (), ()))
    engine.gate.set()
    await asyncio.gather(*tasks)

    assert engine.scored[:3] == ["held", "a0", "b"]


async def test_deadlines_pass_while_a_batch_runs_and_the_next_goes_on_without_them(
    make: Make,
) -> None:
    """Each is answered at its deadline, inside a running batch or behind it; nobody else waits."""
    engine = ScriptedEngine({}, default=GOOD)
    rig = make(engine)
    engine.gate.clear()
    held = asyncio.create_task(rig.handle(request("held")))
    await asyncio.to_thread(engine.entered.wait)
    kept = [asyncio.create_task(rig.handle(request(f"kept{n}"))) for n in range(3)]

    late = await asyncio.gather(
        *(rig.handle(request(f"late{n}"), semif_timeout_ms="20") for n in range(3))
    )

    assert [code_of(reply) for reply in late] == ["deadline_exceeded"] * 3
    assert not any(task.done() for task in (held, *kept))
    engine.gate.set()
    replies = await asyncio.gather(held, *kept)
    assert [code_of(reply) for reply in replies] == ["answered"] * 4
    assert sorted(engine.scored) == ["held", "kept0", "kept1", "kept2"]


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


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(
        st.sampled_from(["s", "oom", "failed", "refused inside", "cancelled"]),
        min_size=1,
        max_size=12,
    )
)
def test_as_many_replies_as_requests_whatever_their_end(ends: list[str]) -> None:
    """Any mixture of good, failing and cancelled requests at once: one counted reply each."""
    engine = ScriptedEngine(
        {
            "oom": OutOfMemory(),
            "failed": ScoringFailed(),
            "refused inside": Scores((ScoringFailed(),), 1.0, 1, 0),
        },
        default=GOOD,
    )

    async def ask() -> tuple[list[Reply], Rig]:
        rig = Rig(engine, Settings())
        engine.gate.clear()
        try:
            tasks = [asyncio.create_task(rig.handle(request(end))) for end in ends]
            await asyncio.to_thread(engine.entered.wait)
            for end, task in zip(ends, tasks, strict=True):
                if end == "cancelled":
                    task.cancel()
            engine.gate.set()
            return await asyncio.gather(*tasks), rig
        finally:
            await rig.close()

    replies, rig = asyncio.run(ask())

    expected = {
        "s": "answered",
        "oom": "out_of_memory",
        "failed": "scoring_failed",
        "refused inside": "scoring_failed",
        "cancelled": "draining",
    }
    assert [code_of(reply) for reply in replies] == [expected[end] for end in ends]
    assert rig.meter.answered + sum(rig.meter.refused.values()) == len(ends)
    assert (rig.admission.jobs, rig.admission.bytes) == (0, 0)
