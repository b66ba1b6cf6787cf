"""Looking at a server: all differences at once, at the start of an actor and for the commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from actor.bus.connection import Connection, Refusal
from actor.bus.objects.api import (
    Ask,
    ConsumerInfo,
    NoApi,
    StreamInfo,
    asking,
    consumer_info,
    consumers_of,
    stream_info,
    streams_taking,
)
from actor.bus.objects.consumers import consumer_differences
from actor.bus.objects.difference import Difference
from actor.bus.objects.streams import (
    own_differences,
    request_differences,
    sink_differences,
    source_differences,
)
from actor.bus.objects.wanted import OwnStream, Wanted, WantedConsumer, wanted_objects
from actor.rules.rule import Rule
from actor.settings import Settings

__all__ = ["Looked", "check", "look", "look_at_requests"]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Looked:
    """One thing that is wanted, what of it is there, and what is different."""

    what: str
    why: str
    differences: tuple[Difference, ...]
    want: OwnStream | WantedConsumer | None = None
    """What ``stream apply`` may make or change; None for what is the user's own."""
    there: StreamInfo | ConsumerInfo | None = None


async def check(connection: Connection, settings: Settings, rules: Sequence[Rule]) -> str:
    """Look at everything that an actor with these settings and rules needs.

    Raises :class:`Refusal` with every difference spelled out; else says what was found. Changes
    nothing. An actor that neither jobs nor rules bind to JetStream does without it, and without
    permission to look.
    """
    wanted = wanted_objects(settings, rules)
    async with asking(connection) as ask:
        try:
            requests = await look_at_requests(ask, wanted)
            said = "no stream takes requests"
        except NoApi as error:
            requests, said = [], f"whether a stream takes requests is not known: {error}"
        try:
            objects = await look(ask, wanted)
        except NoApi as error:
            raise Refusal(f"JetStream is needed for jobs and rules: {error}") from None
    differences = dict.fromkeys(
        each for found in (*requests, *objects) for each in found.differences
    )
    for each in differences:  # a heartbeat has no room for many
        _log.error("a stream or consumer is not as wanted", text=str(each))
    if differences:
        raise Refusal("; ".join(map(str, differences)))
    names = [found.what for found in objects]
    return "; ".join([said, *([f"as wanted: {', '.join(dict.fromkeys(names))}"] if names else [])])


async def look_at_requests(ask: Ask, wanted: Wanted) -> list[Looked]:
    """Look for streams that take requests; raises :class:`NoApi`."""
    taken: dict[str, list[str]] = {}
    for subject in wanted.requests:
        for stream in await streams_taking(ask, subject):
            taken.setdefault(stream, []).append(subject)
    looked = []
    for stream, subjects in taken.items():
        try:
            info = await stream_info(ask, stream)
        except NoApi:  # an actor need not be allowed to look at everybody's streams
            info = None
        differences = request_differences(stream, subjects, info)
        looked.append(Looked(f"stream {stream}", "takes requests", tuple(differences)))
    return looked


async def look(ask: Ask, wanted: Wanted) -> list[Looked]:
    """Look at every stream and consumer that is wanted; raises :class:`NoApi`."""
    streams = {name: await stream_info(ask, name) for name in wanted.streams}
    looked = []
    for own in wanted.own:
        info = streams[own.name]
        owners = () if info else await _owners(ask, own.subject)
        found = own_differences(own, info, owners)
        looked.append(Looked(f"stream {own.name}", own.holds, tuple(found), own, info))
    for source in wanted.sources:
        found = source_differences(source, streams[source.name])
        why = f'read by rule "{source.rule}"'
        looked.append(Looked(f"stream {source.name}", why, tuple(found)))
    for sink in wanted.sinks:
        found = sink_differences(sink, streams[sink.name])
        why = f'written by rule "{sink.rule}"'
        looked.append(Looked(f"stream {sink.name}", why, tuple(found)))
    looked += [
        await _look_at_consumer(ask, want, streams[want.stream], wanted)
        for want in wanted.consumers
    ]
    return looked


async def _owners(ask: Ask, subject: str) -> tuple[str, ...]:
    try:
        return await streams_taking(ask, subject)
    except NoApi:  # it names the culprit, no more: that the stream is missing is known
        return ()


async def _look_at_consumer(
    ask: Ask, want: WantedConsumer, stream: StreamInfo | None, wanted: Wanted
) -> Looked:
    info = await consumer_info(ask, want.stream, want.durable) if stream else None
    rivals = {
        other.durable: frozenset((other.subject,))
        for other in wanted.consumers
        if other.stream == want.stream and other.durable != want.durable
    }
    queue = stream is not None and stream.config.retention == "workqueue"
    if queue and (info is None or info.config.filters != {want.subject}):
        # The server lets no two consumers of a work queue have a message in common: with ours as
        # it should be there is no other.
        others = await _consumers(ask, want.stream)
        rivals |= {each.name: each.config.filters for each in others if each.name != want.durable}
    found = consumer_differences(want, info, stream, rivals if queue else {})
    what = f"consumer {want.durable} of {want.stream}"
    return Looked(what, f"reads {want.reads}", tuple(found), want, info)


async def _consumers(ask: Ask, stream: str) -> tuple[ConsumerInfo, ...]:
    try:
        return await consumers_of(ask, stream)
    except NoApi:  # they name the culprit, no more: that ours is not as wanted is known
        return ()
