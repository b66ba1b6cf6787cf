"""Streams: what is there against what is wanted, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from actor.bus.objects.api import StreamConfig, StreamInfo
from actor.bus.objects.difference import Difference, covers, meets_any, seconds
from actor.bus.objects.wanted import OwnStream, SinkStream, SourceStream

__all__ = ["own_differences", "request_differences", "sink_differences", "source_differences"]

ANOTHER = "it cannot be changed: name another stream, or delete this one when nobody needs it"
NEVER_OURS = "change it by hand, it is not the actor's"


def request_differences(
    stream: str, requests: Sequence[str], info: StreamInfo | None
) -> list[Difference]:
    """Tell of a stream that takes ``requests``: callers get its acknowledgement for an answer.

    ``info`` is None when the stream may not be looked at. One that acknowledges nothing harms
    nobody.
    """
    if info is not None and (info.config.no_ack or info.config.sealed):
        return []
    taken = ", ".join(info.config.subjects or ()) if info else "not to be seen"
    wanted = f"nothing of {', '.join(requests)}: callers would take its acknowledgement for answers"
    todo = "take it out of the stream's subjects, or set its no_ack"
    return [Difference(f"stream {stream}", "subjects", taken, wanted, todo)]


def own_differences(
    want: OwnStream, info: StreamInfo | None, owners: Sequence[str]
) -> list[Difference]:
    """Compare a stream of ours; ``owners``, when it is missing, are those that have its subject."""
    name = f"stream {want.name}"
    if info is None:
        needed = f"for {want.holds}"
        if owners:
            held = f"missing, and {want.subject} taken by stream {', '.join(owners)}"
            todo = "take it out of that stream's subjects, or name that stream in the settings"
            return [Difference(name, "", held, needed, todo)]
        return [Difference(name, "", "missing", needed, changes=_new_stream(want))]
    return [*_fixed(name, want, info.config), *_settable(name, want, info.config)]


def _new_stream(want: OwnStream) -> dict[str, Any]:
    return {
        "name": want.name,
        "description": f"{want.holds} of semif-actor",
        "subjects": [want.subject],
        "retention": want.retention,
        "storage": "file",
        # Should it ever get a limit: who publishes is told, instead of the oldest being deleted.
        "discard": "new",
        "duplicate_window": want.dedup_ns,
    }


def _fixed(name: str, want: OwnStream, config: StreamConfig) -> Iterator[Difference]:
    """Find what a server does not change, or what would lose messages if it did."""
    right = {want.retention} if want.holds == "jobs" else {"limits", "workqueue"}
    if config.retention not in right:
        yield Difference(name, "retention", config.retention, want.retention, ANOTHER)
    if config.storage != "file":
        wanted = "file: a restart of the server must lose nothing"
        yield Difference(name, "storage", config.storage, wanted, ANOTHER)
    yield from _closed(name, config, ANOTHER)
    if config.subject_transform:
        todo = "remove it: a result goes where its job's subject says"
        yield Difference(name, "subject_transform", "set", "none", todo)


def _closed(name: str, config: StreamConfig, todo: str) -> Iterator[Difference]:
    """Find what makes a stream take no message at all."""
    if config.mirror:
        yield Difference(name, "mirror", str(config.mirror.get("name")), "none", todo)
    if config.sealed:
        yield Difference(name, "sealed", "true", "false", todo)


def _settable(name: str, want: OwnStream, config: StreamConfig) -> Iterator[Difference]:
    subjects = config.subjects or ()
    if not any(covers(each, want.subject) for each in subjects):
        kept = [each for each in subjects if not covers(want.subject, each)]
        changed = {"subjects": [*kept, want.subject]}
        yield Difference(
            name, "subjects", ", ".join(subjects) or "none", want.subject, changes=changed
        )
    if config.duplicate_window < want.dedup_ns:
        changes = {"duplicate_window": want.dedup_ns}
        wanted = f"at least {seconds(want.dedup_ns)}"
        found = seconds(config.duplicate_window)
        yield Difference(name, "duplicate_window", found, wanted, changes=changes)
    if -1 < config.max_msg_size < want.message_bytes_max:
        wanted = f"at least {want.message_bytes_max}, or no limit"
        changes = {"max_msg_size": -1}
        yield Difference(name, "max_msg_size", str(config.max_msg_size), wanted, changes=changes)
    if config.no_ack:
        yield Difference(name, "no_ack", "true", "false", changes={"no_ack": False})
    if want.holds == "jobs":
        yield from _losing(name, config)


def _losing(name: str, config: StreamConfig) -> Iterator[Difference]:
    """Find the limits by which a server deletes jobs that nobody has done."""
    if config.max_age:
        found = seconds(config.max_age)
        yield Difference(name, "max_age", found, "no limit", changes={"max_age": 0})
    if config.max_msgs_per_subject > -1:
        found = str(config.max_msgs_per_subject)
        changes = {"max_msgs_per_subject": -1}
        yield Difference(name, "max_msgs_per_subject", found, "no limit", changes=changes)
    if max(config.max_msgs, config.max_bytes) > -1 and config.discard != "new":
        wanted = "new: with a limit, old would delete jobs"
        yield Difference(name, "discard", config.discard, wanted, changes={"discard": "new"})


def source_differences(want: SourceStream, info: StreamInfo | None) -> list[Difference]:
    """Look whether a user's stream can give a rule its events."""
    name = f"stream {want.name}"
    if info is None:
        return [_missing(name, want.rule)]
    config = info.config
    # A mirror's and an aggregate's messages have the subjects of other streams.
    if config.mirror or config.sources or meets_any(want.subject, config.subjects or ()):
        return []
    wanted = f'some of {want.subject}, which rule "{want.rule}" reads'
    held = ", ".join(config.subjects or ()) or "none"
    return [Difference(name, "subjects", held, wanted, NEVER_OURS)]


def sink_differences(want: SinkStream, info: StreamInfo | None) -> list[Difference]:
    """Look whether a user's stream takes, once, what a rule publishes."""
    name = f"stream {want.name}"
    if info is None:
        return [_missing(name, want.rule)]
    config = info.config
    found = list(_closed(name, config, NEVER_OURS))
    subjects = config.subjects or ()
    if lost := [each for each in want.subjects if not meets_any(each, subjects)]:
        wanted = f'also {", ".join(lost)}, where rule "{want.rule}" publishes'
        held = ", ".join(subjects) or "none"
        found.append(Difference(name, "subjects", held, wanted, NEVER_OURS))
    if config.no_ack:
        found.append(Difference(name, "no_ack", "true", "false", NEVER_OURS))
    if config.duplicate_window < want.dedup_ns:
        wanted = f"at least {seconds(want.dedup_ns)}"
        held = seconds(config.duplicate_window)
        found.append(Difference(name, "duplicate_window", held, wanted, NEVER_OURS))
    return found


def _missing(name: str, rule: str) -> Difference:
    return Difference(name, "", "missing", f'for rule "{rule}"', "make it by hand")
