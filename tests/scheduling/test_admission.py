"""Permits: never over the limits, always given back."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actor.scheduling.admission import Admission
from schemas.errors import Overloaded


@given(
    jobs_max=st.integers(1, 6),
    bytes_max=st.integers(1, 50),
    steps=st.lists(st.one_of(st.integers(0, 60), st.none()), max_size=40),
)
def test_limits_hold_for_any_sequence(
    jobs_max: int, bytes_max: int, steps: list[int | None]
) -> None:
    """A number asks for a permit of that many bytes, None gives the oldest one back."""
    admission = Admission(jobs_max=jobs_max, bytes_max=bytes_max)
    held: list[tuple[int, ExitStack]] = []
    for step in steps:
        if step is None:
            if held:
                held.pop(0)[1].close()
            continue
        fits = len(held) < jobs_max and (
            not held or sum(size for size, _ in held) + step <= bytes_max
        )
        stack = ExitStack()
        try:
            stack.enter_context(admission.permit(step))
        except Overloaded:
            assert not fits
        else:
            assert fits
            held.append((step, stack))
        assert admission.jobs == len(held)
        assert admission.bytes == sum(size for size, _ in held)
    for _, stack in held:
        stack.close()
    assert (admission.jobs, admission.bytes) == (0, 0)


def test_an_oversize_request_enters_alone_only() -> None:
    """Refused beside another, or it would never fit; let in by itself, and then alone."""
    admission = Admission(jobs_max=9, bytes_max=10)

    with admission.permit(1), pytest.raises(Overloaded) as beside, admission.permit(11):
        pass
    with admission.permit(11):
        assert admission.bytes == 11
        with pytest.raises(Overloaded), admission.permit(1):
            pass

    assert str(beside.value) == "The queue is full by size, the limit is 10 bytes."


def test_a_permit_is_given_back_after_an_exception() -> None:
    """Whatever happens to a request, its room is free again."""
    admission = Admission(jobs_max=1, bytes_max=10)

    with pytest.raises(KeyError), admission.permit(5):
        raise KeyError

    assert (admission.jobs, admission.bytes) == (0, 0)


def test_retry_after_is_the_time_for_what_waits() -> None:
    """Ten requests at half a second each: five seconds."""
    admission = Admission(jobs_max=10, bytes_max=1000)
    admission.observe(0.5)
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(admission.permit(1))

        with pytest.raises(Overloaded) as caught, admission.permit(1):
            pass

    assert caught.value.retry_after_ms == 5000
    assert caught.value.limit == 10


def test_the_rate_follows_what_is_observed() -> None:
    """The newest observation weighs a fifth: 0.5, then 0.5 + 0.2 * (1.0 - 0.5) = 0.6."""
    admission = Admission(jobs_max=1, bytes_max=1000)
    admission.observe(0.5)
    admission.observe(1.0)
    with admission.permit(1), pytest.raises(Overloaded) as caught, admission.permit(1):
        pass

    assert caught.value.retry_after_ms == 600


def test_before_anything_is_measured_a_retry_waits_a_little() -> None:
    """Never 0: a caller that obeys must not spin."""
    admission = Admission(jobs_max=1, bytes_max=1000)
    with admission.permit(1), pytest.raises(Overloaded) as caught, admission.permit(1):
        pass

    assert (caught.value.retry_after_ms or 0) >= 10
