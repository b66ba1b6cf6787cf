"""Consumers: what is there against what is wanted, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from actor.bus.objects.api import ConsumerConfig, ConsumerInfo, StreamInfo
from actor.bus.objects.difference import Difference, meets_any, seconds
from actor.bus.objects.wanted import WantedConsumer

__all__ = ["consumer_differences"]


def consumer_differences(
    want: WantedConsumer,
    info: ConsumerInfo | None,
    stream: StreamInfo | None,
    rivals: Mapping[str, frozenset[str]],
) -> list[Difference]:
    """Compare a consumer; ``rivals`` are the others on a work queue, by name, with filters."""
    name = f"consumer {want.durable} of {want.stream}"
    clash = {
        each: filters
        for each, filters in rivals.items()
        if not filters or meets_any(want.subject, filters)
    }
    queue = [
        Difference(
            f"consumer {each} of {want.stream}",
            "filter_subject",
            ", ".join(sorted(filters)) or "all subjects",
            f"none of {want.subject}: a work queue gives each message to one consumer",
            "delete it, or change its filter",
        )
        for each, filters in clash.items()
    ]
    if info is None:
        jobs = want.reads == "jobs"
        queued = jobs or (stream is not None and stream.config.retention == "workqueue")
        todo = "" if jobs or stream else "make its stream first"
        changes = _new_consumer(want, queued=queued)
        missing = Difference(name, "", "missing", f"for {want.reads}", todo, changes)
        return queue or [missing]
    config = info.config
    whole = stream is not None and frozenset(stream.config.subjects or ()) == {want.subject}
    filtered = config.filters == {want.subject} or (whole and not config.filters)
    if not filtered:
        changes = {"filter_subject": want.subject, "filter_subjects": None}
        found = ", ".join(sorted(config.filters)) or "all subjects"
        queue.append(Difference(name, "filter_subject", found, want.subject, changes=changes))
    return [*(queue if not filtered else ()), *_stuck(name, info), *_tunable(name, want, config)]


def _new_consumer(want: WantedConsumer, *, queued: bool) -> dict[str, Any]:
    return {
        "name": want.durable,
        "durable_name": want.durable,
        "description": f"semif-actor reads {want.reads}",
        # What a stream held before somebody wrote a rule is for `semif-actor replay`. A work queue
        # keeps only what is still to do.
        "deliver_policy": "all" if queued else "new",
        "ack_policy": "explicit",
        "ack_wait": want.ack_wait_ns,
        "max_deliver": -1,
        "max_ack_pending": want.ack_pending,
        "filter_subject": want.subject,
        "replay_policy": "instant",
    }


def _stuck(name: str, info: ConsumerInfo) -> Iterator[Difference]:
    """Find what a server does not change of a consumer, or a person did on purpose."""
    config, remake = info.config, "it cannot be changed: delete it, then semif-actor stream apply"
    if config.deliver_subject:
        found = f"push to {config.deliver_subject}"
        yield Difference(name, "deliver_subject", found, "none: pull", remake)
    if config.ack_policy != "explicit":
        yield Difference(name, "ack_policy", config.ack_policy, "explicit", remake)
    if not config.durable_name:
        yield Difference(name, "durable_name", "none", info.name, remake)
    if config.replay_policy != "instant":
        yield Difference(name, "replay_policy", config.replay_policy, "instant", remake)
    if config.priority_groups:
        groups = ", ".join(config.priority_groups)
        yield Difference(name, "priority_groups", groups, "none", remake)
    if info.paused:
        yield Difference(name, "paused", "true", "false", "nats consumer resume")


def _tunable(name: str, want: WantedConsumer, config: ConsumerConfig) -> Iterator[Difference]:
    if config.ack_wait != want.ack_wait_ns:
        found, wanted = seconds(config.ack_wait), seconds(want.ack_wait_ns)
        yield Difference(name, "ack_wait", found, wanted, changes={"ack_wait": want.ack_wait_ns})
    if config.max_deliver != -1:
        wanted = "-1: the actor counts, and leaves a dead letter"
        found = str(config.max_deliver)
        yield Difference(name, "max_deliver", found, wanted, changes={"max_deliver": -1})
    if -1 < config.max_ack_pending < want.ack_pending_min:
        found, wanted = str(config.max_ack_pending), f"at least {want.ack_pending_min}"
        changes = {"max_ack_pending": want.ack_pending}
        yield Difference(name, "max_ack_pending", found, wanted, changes=changes)
    if config.backoff:
        found = ", ".join(map(seconds, config.backoff))
        wanted = "none: it would stand for ack_wait"
        yield Difference(name, "backoff", found, wanted, changes={"backoff": None})
    unset: dict[str, int | bool] = {
        "headers_only": config.headers_only,
        "inactive_threshold": config.inactive_threshold,
        "max_batch": config.max_batch,
        "max_bytes": config.max_bytes,
        "max_expires": config.max_expires,
    }
    for key, value in unset.items():
        if value:
            yield Difference(name, key, str(value), "none", changes={key: type(value)()})
