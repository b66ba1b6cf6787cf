"""Making and changing streams and consumers: only when a person asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from actor.bus.objects.api import Ask, NoApi, change
from actor.bus.objects.look import Looked, look
from actor.bus.objects.wanted import OwnStream, Wanted, WantedConsumer

__all__ = ["apply", "can_apply"]


def can_apply(looked: Looked) -> bool:
    """True when there is something to do that loses nothing and that the server does.

    An object with one difference that only a person can end is left alone as a whole: half of a
    change may be worse than none.
    """
    return (
        looked.want is not None
        and bool(looked.differences)
        and not any(difference.by_hand for difference in looked.differences)
    )


async def apply(
    ask: Ask, wanted: Wanted, *, replicas: int, tell: Callable[[str], None]
) -> list[Looked]:
    """Make and change what can be, streams first; gives what there is then.

    Raises :class:`NoApi` when the server cannot be looked at; what it refuses to do is told.
    """
    for kind in (OwnStream, WantedConsumer):
        for looked in await look(ask, wanted):
            if isinstance(looked.want, kind) and can_apply(looked):
                done = "made" if looked.there is None else "changed"
                try:
                    await change(ask, *_request(looked, replicas))
                except NoApi as error:
                    tell(f"{looked.what}: not {done}: {error}")
                else:
                    tell(f"{looked.what}: {done}")
    return await look(ask, wanted)


def _request(looked: Looked, replicas: int) -> tuple[str, Mapping[str, Any]]:
    config: dict[str, Any] = dict(looked.there.whole) if looked.there else {}
    for difference in looked.differences:
        config.update(difference.changes)
    config = {key: value for key, value in config.items() if value is not None}
    verb = "CREATE" if looked.there is None else "UPDATE"
    match looked.want:
        case OwnStream(name=name):
            if looked.there is None:
                config["num_replicas"] = replicas
            return f"STREAM.{verb}.{name}", config
        case WantedConsumer(stream=stream, durable=durable):
            # The filter is a part of the subject, so that permissions can speak of it.
            parts = ("CONSUMER.CREATE", stream, durable, config.get("filter_subject"))
            body = {"stream_name": stream, "config": config, "action": verb.lower()}
            return ".".join(filter(None, parts)), body
        case None:
            raise AssertionError("nothing of ours to change: a bug")
