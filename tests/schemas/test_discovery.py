"""The records of the services protocol against its own schemas."""

from __future__ import annotations

import jsonschema
import msgspec
import pytest
from micro_schemas import checked

from schemas.discovery import EndpointStats, InfoResponse, PingResponse, StatsResponse

STATS = EndpointStats(
    name="score",
    subject="semif.v1.score",
    queue_group="",
    num_requests=1,
    num_errors=1,
    last_error="",
    processing_time=2,
    average_processing_time=2,
)


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (PingResponse(id="a", version="1.2.3", metadata={}), "ping"),
        (InfoResponse(id="a", version="1.2.3-rc.1", metadata={"a": "b"}, endpoints=()), "info"),
        (
            StatsResponse(
                id="a",
                version="1.2.3+build",
                metadata={},
                started="2026-01-31T12:00:00Z",
                endpoints=(STATS,),
            ),
            "stats",
        ),
    ],
    ids=["ping", "info", "stats"],
)
def test_each_record_is_valid_and_names_its_type(record: msgspec.Struct, kind: str) -> None:
    """The type is the first thing that a reader of unknown answers looks at."""
    answer = checked(msgspec.json.encode(record))

    assert answer["type"] == f"io.nats.micro.v1.{kind}_response"
    assert answer["name"] == "semif"


def test_data_is_left_out_where_there_is_none_and_goes_in_as_it_is() -> None:
    """JSON made elsewhere is not made again."""
    assert b"data" not in msgspec.json.encode(STATS)
    with_data = msgspec.structs.replace(STATS, data=msgspec.Raw(b'{"a":[1]}'))
    assert msgspec.json.decode(msgspec.json.encode(with_data))["data"] == {"a": [1]}


def test_the_check_refuses_what_the_nats_command_would_hide() -> None:
    """A version that is not SemVer: the schemas do bite."""
    record = PingResponse(id="a", version="0.1", metadata={})
    with pytest.raises(jsonschema.ValidationError):
        checked(msgspec.json.encode(record))
