"""Golden examples of the heartbeat, and the model and the proof that all examples share."""

from __future__ import annotations

import msgspec

from schemas.decision import ModelInfo
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

__all__ = ["MODEL", "PROOF", "PROVING", "READY"]

MODEL = ModelInfo(
    source="example-model",
    revision="0123456789abcdef0123456789abcdef01234567",
    dtype="bfloat16",
    torch_version="2.13.0",
    transformers_version="5.24.0",
)
PROOF = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

READY = Heartbeat(
    instance="gpu-1",
    state="ready",
    reason=None,
    sequence=42,
    time="2026-01-31T12:00:00.000Z",
    interval_s=5.0,
    uptime_s=205.031,
    version="0.1.0",
    scorer="reference",
    proof=PROOF,
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
        model=MODEL,
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

PROVING = msgspec.structs.replace(
    READY,
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
