"""The heartbeat: what an actor says of itself, every few seconds and on request."""

from __future__ import annotations

import msgspec

from schemas.decision import ModelInfo

__all__ = [
    "BusHealth",
    "CanaryHealth",
    "Counters",
    "EngineHealth",
    "Heartbeat",
    "LatencyHealth",
    "PipelineHealth",
    "PrefixCacheHealth",
    "ProofReport",
    "QueueHealth",
    "SourceHealth",
]


class ProofReport(msgspec.Struct, frozen=True, kw_only=True):
    """One proof of the start."""

    name: str
    """Stable name, e.g. ``weights``."""
    outcome: str
    """``running``, ``passed`` or ``failed``."""
    seconds: float
    """Seconds the proof took; 0 while it runs."""
    detail: str
    """What was found, for people: the numbers behind a pass, or the reason of a failure."""


class QueueHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Work accepted and not yet answered."""

    jobs: int
    """Requests accepted and not yet answered, the running one included."""
    jobs_max: int
    """Limit of ``jobs``; over it requests are refused with ``overloaded``."""
    bytes: int
    """Bytes of the request bodies behind ``jobs``."""
    bytes_max: int
    """Limit of ``bytes``."""
    tokens: int
    """Prompt tokens to compute behind ``jobs``; a request counts once its prompts are encoded."""
    tokens_max: int
    """Limit of ``tokens``."""
    in_flight: int
    """Requests that the model works on now."""
    oldest_ms: float
    """Milliseconds that the longest-waiting request has waited; 0 when none waits."""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start of the process.

    ``received`` is ``answered``, all of ``refused``, ``unanswerable``, and what is still being
    worked on.
    """

    received: int
    """Requests that reached the actor on ``score`` and ``score_shared``."""
    answered: int
    """Requests answered with a result."""
    refused: dict[str, int]
    """Requests answered with an error, by code; ``expired``, ``failed`` and ``oom`` included."""
    expired: int
    """Requests answered with ``deadline_exceeded``."""
    failed: int
    """Requests answered with ``scoring_failed``."""
    oom: int
    """Requests answered with ``out_of_memory``."""
    unanswerable: int
    """Requests without a reply subject that can be used: counted and dropped."""
    replies_dropped: int
    """Replies that could not be sent because the connection was gone."""


class LatencyHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Time from receipt to reply of the requests answered with a result in the last minute."""

    samples: int
    """How many requests the figures stand on."""
    p50_ms: float
    """Median in milliseconds; 0 without samples."""
    p99_ms: float
    """99th percentile in milliseconds; 0 without samples."""


class PrefixCacheHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What the model computed for states, kept for requests to come."""

    entries: int
    """States kept."""
    bytes: int
    """Bytes they take on the device."""
    bytes_max: int
    """Limit of ``bytes``; the least recently used go first."""
    hits: int
    """Times a state was there."""
    misses: int
    """Times a state had to be computed."""
    evictions: int
    """States let go, for room or when memory ran out."""
    refused: int
    """States larger than the whole cache."""


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The resident model and its device."""

    model: ModelInfo
    """SemIf's metadata of the model."""
    scorer: str
    """Scorer in use."""
    device: str
    """The device asked for and used: ``cpu``, ``cuda:0``."""
    device_name: str
    """What the device calls itself."""
    memory_allocated_bytes: int
    """CUDA: bytes in live tensors. CPU: resident memory of the process."""
    memory_reserved_bytes: int
    """CUDA: bytes held by the allocator. CPU: resident memory of the process."""
    memory_cap_bytes: int
    """CUDA: the cap set before the weights. CPU: 0, no cap."""
    memory_resting_bytes: int
    """``memory_reserved_bytes`` measured at the end of the proofs; bursts return to it."""
    tokens_max: int
    """Longest prompt in tokens."""
    attention: str
    """Attention kernel; ``plain`` is the slow formula, for cards without a fitting one."""
    prefix_cache: PrefixCacheHealth | None
    """Of the fast scorer; null with the reference scorer."""


class CanaryHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with a known answer, asked again and again, and after every engine error."""

    runs: int
    """Times it was asked since the start."""
    last_ok: str | None
    """When it last gave the known answer, RFC 3339 in UTC."""


class BusHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The connection to NATS."""

    reconnects: int
    """Times the connection was lost and made again."""
    moves: int
    """Times a server in lame duck mode was left for another without a break."""
    queue_group: str
    """Queue group of the request subjects; empty: each actor answers every request."""
    taking: bool
    """True while subscribed to the request subjects: not while starting, draining, or out of the
    queue group because the queue is full.
    """
    steps_out: int
    """Times the actor left the queue group because its queue was full and another had room."""
    dropped_unsent: int
    """Messages published and not yet sent when the connection broke."""
    dropped_by_client: int
    """Requests that were lost before they could be refused; anything but 0 is a bug."""
    publishes_refused: int
    """Messages that the server's permissions did not let out."""


class SourceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that one job stream or rule reads; counts since the start of the process."""

    fault: str | None
    """Why nothing can be fetched at the moment; null while all is well."""
    held: int
    """Messages taken and not yet settled."""
    deliveries: int
    """Messages delivered, repeated deliveries included."""
    outcomes: dict[str, int]
    """Messages settled, by outcome code: those done, and those that became dead letters."""
    retries: int
    """Messages given back to be delivered again later."""
    dead: int
    """Messages that became dead letters."""
    dead_unstored: int
    """Times a dead letter could not be stored; its message is kept and delivered again."""
    unconfirmed: int
    """Messages whose acknowledgement the server did not confirm; they may be delivered again."""


class PipelineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Work that comes from streams and by rules."""

    sources: dict[str, SourceHealth]
    """``jobs``, and each rule by its name."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Published on ``<prefix>.health.<instance>`` at once, at every change and every interval.

    An actor is alive while its last heartbeat is younger than three intervals.
    """

    instance: str
    """Name of the actor, unique on the bus."""
    state: str
    """``starting``, ``proving``, ``ready``, ``draining``, ``stopped`` or ``failed``."""
    reason: str | None
    """Why the state is ``failed`` or ``draining``."""
    sequence: int
    """1 for the first heartbeat of a process, then one more each time."""
    time: str
    """When it was sent, RFC 3339 in UTC."""
    interval_s: float
    """Seconds to the next heartbeat at the latest."""
    uptime_s: float
    """Seconds since the start of the process's service."""
    version: str
    """Version of semif-actor."""
    scorer: str
    """Scorer asked for."""
    proof: str | None
    """Hash of the start report; absent (null) until every proof has passed."""
    proofs: tuple[ProofReport, ...]
    """The start report so far; the last entry is the proof that runs, or the one that failed."""
    queue: QueueHealth
    """Work accepted and not yet answered."""
    counters: Counters
    """Counts since the start."""
    latency: LatencyHealth
    """Latency of the last minute."""
    canary: CanaryHealth
    """The known decision."""
    bus: BusHealth
    """The connection."""
    pipeline: PipelineHealth | None = None
    """Jobs and rules; null when neither is on."""
    engine: EngineHealth | None
    """The model and its device; null until the weights are in place."""
