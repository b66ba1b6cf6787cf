"""The heartbeat as watchers read it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from schemas.codec import Codec, codec_for
from schemas.examples import EXAMPLES
from schemas.health import Heartbeat

STARTING = (
    b'{"instance":"i","state":"starting","reason":null,"sequence":1,'
    b'"time":"2026-01-31T12:00:00.000Z","interval_s":5.0,"uptime_s":0.1,"version":"0.1.0",'
    b'"scorer":"reference","proof":null,"proofs":[],'
    b'"queue":{"jobs":0,"jobs_max":8,"bytes":0,"bytes_max":64,'
    b'"tokens":0,"tokens_max":4096,"in_flight":0,"oldest_ms":0.0},'
    b'"counters":{"received":0,"answered":0,"refused":{},"expired":0,"failed":0,"oom":0,'
    b'"unanswerable":0,"replies_dropped":0},'
    b'"latency":{"samples":0,"p50_ms":0.0,"p99_ms":0.0},"canary":{"runs":0,"last_ok":null},'
    b'"bus":{"reconnects":0,"moves":0,"queue_group":"semif","taking":false,"steps_out":0,'
    b'"dropped_unsent":0,"dropped_by_client":0,"publishes_refused":0},"pipeline":null,"engine":null}'
)


def test_what_is_not_known_yet_is_null() -> None:
    """A watcher finds every field in every heartbeat, from the first on."""
    beat = msgspec.json.decode(STARTING, type=Heartbeat)
    assert (beat.reason, beat.proof, beat.canary.last_ok, beat.engine) == (None, None, None, None)
    assert msgspec.json.encode(beat) == STARTING


def test_a_watcher_takes_fields_it_does_not_know() -> None:
    """Actors are upgraded before their watchers."""
    newer = STARTING.replace(b'{"reconnects":0,', b'{"reconnects":0,"new":[1],')
    assert msgspec.json.decode(newer, type=Heartbeat).bus.reconnects == 0


@pytest.mark.parametrize("media_type", ["application/json", "application/msgpack"])
@pytest.mark.parametrize("variant", EXAMPLES["heartbeat"])
def test_heartbeats_round_trip(media_type: str, variant: str) -> None:
    """What is sent is what is read, with and without an engine."""
    codec: Codec[Any] = codec_for(media_type)
    beat = EXAMPLES["heartbeat"][variant]
    assert codec.decode(codec.encode(beat), Heartbeat) == beat
