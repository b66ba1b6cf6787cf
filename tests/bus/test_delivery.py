"""A consumer's delivery, read by its reply subject."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg

from actor.bus.delivery import Delivery, delivery_of
from actor.wire import UNREADABLE_HEADERS


def message(reply: str, headers: dict[str, str] | None = None) -> Msg:
    """Give a message as nats-py delivers it."""
    return Msg(_client=Client(), subject="semif.v1.jobs.a", reply=reply, data=b"x", headers=headers)


# The two forms of ADR-15: plain, and with domain, account hash and a random token.
PLAIN = "$JS.ACK.JOBS.semif.3.17.20.1700000000000000001.5"
WITH_DOMAIN = "$JS.ACK.hub.Ab12.JOBS.semif.3.17.20.1700000000000000001.5.tokn"


@pytest.mark.parametrize("reply", [PLAIN, WITH_DOMAIN])
def test_both_forms_say_the_same(reply: str) -> None:
    """Stream, sequence, deliveries and time are found in either."""
    found = delivery_of(message(reply, {"X-Own": "y"}))

    assert found == Delivery(
        subject="semif.v1.jobs.a",
        payload=b"x",
        headers={"X-Own": "y"},
        stream="JOBS",
        sequence=17,
        timestamp_ns=1700000000000000001,
        deliveries=3,
    )
    assert found.message_id == "JOBS.17.1700000000000000001"


def test_a_status_in_the_headers_makes_no_status() -> None:
    """Who sends a job may write what he likes into its headers."""
    assert delivery_of(message(PLAIN, {"Status": "404"})) is not None


def test_headers_that_cannot_be_read_are_told() -> None:
    """The mark that stands for them does not pass as a header."""
    found = delivery_of(message(PLAIN, {UNREADABLE_HEADERS: "1"}))

    assert found is not None
    assert found.headers_unreadable
    assert found.headers == {}


def test_a_message_outside_of_a_stream_has_no_name() -> None:
    """Nothing tells two of them apart: deduplication would drop one."""
    assert Delivery(subject="a", payload=b"", headers={}).message_id == ""


@given(rest=st.text(st.characters(codec="utf-8"), max_size=80))
def test_any_reply_subject_is_a_delivery_or_none(rest: str) -> None:
    """Nothing that stands there raises."""
    delivery_of(message(rest))
    delivery_of(message(f"$JS.ACK.{rest}"))
