"""Golden examples: one or two messages of each kind, as the records of the contract.

Figures belong together: probabilities are the softmax of their logits, the choice and its margin
follow from them, and ``total_ms`` covers its parts.
"""

from __future__ import annotations

import msgspec

from schemas.decision import (
    Decision,
    ModelInfo,
    Option,
    Refused,
    Scored,
    ScoreReply,
    ScoreRequest,
    ServedBy,
    SharedReply,
    SharedRequest,
    Timing,
)
from schemas.errors import ErrorReply, Invalid, Overloaded, body_of
from schemas.health import (
    BusHealth,
    CanaryHealth,
    Counters,
    EngineHealth,
    Heartbeat,
    LatencyHealth,
    PipelineHealth,
    PrefixCacheHealth,
    ProofReport,
    QueueHealth,
    SourceHealth,
)

__all__ = ["EXAMPLES"]

_TEAMS = (
    Option(id="mobile", description="The team that builds the phone app"),
    Option(id="web", description="The team that builds the web site"),
    Option(id="billing", description="The team that answers questions about invoices"),
)
_YES_NO = (
    Option(id="yes", description="Yes, it does"),
    Option(id="no", description="No, it does not"),
)
_TICKET = {
    "subject": "Crash",
    "text": "The app closes as soon as I open the camera.",
    "plan": "pro",
    "attachments": 2,
}

_MODEL = ModelInfo(
    source="example-model",
    revision="0123456789abcdef0123456789abcdef01234567",
    dtype="bfloat16",
    torch_version="2.13.0",
    transformers_version="5.24.0",
)
_SHARED_MODEL = msgspec.structs.replace(_MODEL, serving_config="native-state-prefix-parallel-v1")
_PROOF = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_SERVED_BY = ServedBy(instance="gpu-1", scorer="reference", proof=_PROOF)
_PROMPT_VERSION = "direct-options-v1"
_PROBABILITY_STATUS = "conditional option score; uncalibrated as decision confidence"

_SCORE_REPLY = ScoreReply(
    id="ticket-4711",
    option_ids=("mobile", "web", "billing"),
    probabilities=(0.9362395518765058, 0.0466126225779739, 0.01714782554552039),
    option_logits=(21.0, 18.0, 17.0),
    input_tokens=142,
    prompt_sha256="2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    prompt_version=_PROMPT_VERSION,
    model=_MODEL,
    readout="native full-vocabulary last-position logits restricted to declared answer slots",
    probability_status=_PROBABILITY_STATUS,
    forward_seconds=0.021,
    total_seconds=0.024,
    choice="mobile",
    margin=0.8896269292985319,
    timing=Timing(
        queue_ms=3.2,
        encode_ms=1.9,
        forward_ms=24.0,
        total_ms=29.6,
        batch_rows=1,
        prefix_tokens_reused=0,
    ),
    served_by=_SERVED_BY,
)

_SHARED_REPLY = SharedReply(
    results=(
        Scored(
            id="urgent",
            option_ids=("yes", "no"),
            probabilities=(0.8807970779778823, 0.11920292202211755),
            option_logits=(19.5, 17.5),
            input_tokens=131,
            prompt_sha256="fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9",
            prompt_version=_PROMPT_VERSION,
            model=_SHARED_MODEL,
            readout="native selected suffix-position logits",
            probability_status=_PROBABILITY_STATUS,
            choice="yes",
            margin=0.7615941559557647,
        ),
        Refused(
            id="decisions[1]",
            error=body_of(
                Invalid("Descriptions must differ.", field="decisions[1].options[1].description")
            ),
        ),
    ),
    timing=Timing(
        queue_ms=0.4,
        encode_ms=2.7,
        forward_ms=31.5,
        total_ms=35.1,
        batch_rows=1,
        prefix_tokens_reused=0,
    ),
    served_by=_SERVED_BY,
)

_READY = Heartbeat(
    instance="gpu-1",
    state="ready",
    reason=None,
    sequence=42,
    time="2026-01-31T12:00:00.000Z",
    interval_s=5.0,
    uptime_s=205.031,
    version="0.1.0",
    scorer="reference",
    proof=_PROOF,
    proofs=(
        ProofReport(name="device", outcome="passed", seconds=0.21, detail="cuda:0, bfloat16"),
        ProofReport(name="weights", outcome="passed", seconds=9.87, detail="complete, checked"),
    ),
    queue=QueueHealth(
        jobs=3,
        jobs_max=256,
        bytes=2048,
        bytes_max=67108864,
        tokens=420,
        tokens_max=1048576,
        in_flight=1,
        oldest_ms=12.5,
    ),
    counters=Counters(
        received=1000,
        answered=990,
        refused={"deadline_exceeded": 1, "invalid": 4, "overloaded": 2},
        expired=1,
        failed=0,
        oom=0,
        unanswerable=0,
        replies_dropped=0,
    ),
    latency=LatencyHealth(samples=120, p50_ms=28.4, p99_ms=61.0),
    canary=CanaryHealth(runs=3, last_ok="2026-01-31T11:59:31.250Z"),
    bus=BusHealth(
        reconnects=0,
        moves=0,
        queue_group="semif",
        taking=True,
        steps_out=0,
        dropped_unsent=0,
        dropped_by_client=0,
        publishes_refused=0,
    ),
    pipeline=PipelineHealth(
        sources={
            "jobs": SourceHealth(
                fault=None,
                held=2,
                deliveries=530,
                outcomes={"done": 520, "invalid": 1, "gave_up": 1},
                retries=6,
                dead=2,
                dead_unstored=0,
                unconfirmed=0,
            )
        }
    ),
    engine=EngineHealth(
        attention="flash",
        prefix_cache=PrefixCacheHealth(
            entries=12,
            bytes=41_943_040,
            bytes_max=536_870_912,
            hits=340,
            misses=52,
            evictions=0,
            refused=0,
        ),
        model=_MODEL,
        scorer="reference",
        device="cuda:0",
        device_name="Example GPU",
        memory_allocated_bytes=8589934592,
        memory_reserved_bytes=9126805504,
        memory_cap_bytes=12884901888,
        memory_resting_bytes=8858370048,
        tokens_max=4096,
    ),
)

_PROVING = msgspec.structs.replace(
    _READY,
    state="proving",
    sequence=2,
    time="2026-01-31T11:56:40.000Z",
    uptime_s=5.031,
    proof=None,
    proofs=(
        ProofReport(name="device", outcome="passed", seconds=0.21, detail="cuda:0, bfloat16"),
        ProofReport(name="weights", outcome="running", seconds=0.0, detail=""),
    ),
    queue=QueueHealth(
        jobs=0,
        jobs_max=256,
        bytes=0,
        bytes_max=67108864,
        tokens=0,
        tokens_max=1048576,
        in_flight=0,
        oldest_ms=0.0,
    ),
    counters=Counters(
        received=0,
        answered=0,
        refused={},
        expired=0,
        failed=0,
        oom=0,
        unanswerable=0,
        replies_dropped=0,
    ),
    latency=LatencyHealth(samples=0, p50_ms=0.0, p99_ms=0.0),
    canary=CanaryHealth(runs=0, last_ok=None),
    pipeline=None,
    engine=None,
)

EXAMPLES: dict[str, dict[str, msgspec.Struct]] = {
    "score_request": {
        "": ScoreRequest(
            id="ticket-4711",
            state=_TICKET,
            question="Which team should take this ticket?",
            options=_TEAMS,
        ),
        "text": ScoreRequest(
            state="The app closes as soon as I open the camera.",
            question="Does the customer report a fault?",
            options=_YES_NO,
        ),
    },
    "score_reply": {"": _SCORE_REPLY},
    "shared_request": {
        "": SharedRequest(
            state=_TICKET,
            decisions=(
                Decision(id="urgent", question="Does it stop their work?", options=_YES_NO),
                Decision(
                    question="Does the customer ask for a refund?",
                    options=(
                        Option(id="yes", description="They do"),
                        Option(id="maybe", description="They do"),
                    ),
                ),
            ),
        ),
    },
    "shared_reply": {"": _SHARED_REPLY},
    "error_reply": {
        "": ErrorReply(
            error=body_of(
                Overloaded(
                    "The queue is full by count", limit=256, unit="requests", retry_after_ms=740
                )
            )
        ),
        "invalid": ErrorReply(
            error=body_of(
                Invalid("A description must not be blank.", field="options[1].description")
            )
        ),
    },
    "heartbeat": {"": _READY, "proving": _PROVING},
}
"""Message -> variant -> record; the plain one has the empty name."""
