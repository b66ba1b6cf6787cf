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
    """A number asks for a permit of that many bytes, None gives the oldest one back.

    Each of another caller's, who may fill the limits to their ends.
    """
    admission = Admission(jobs_max=jobs_max, bytes_max=bytes_max, tokens_max=1)
    held: list[tuple[int, ExitStack]] = []
    for number, step in enumerate(steps):
        if step is None:
            if held:
                held.pop(0)[1].close()
            continue
        fits = len(held) < jobs_max and (
            not held or sum(size for size, _ in held) + step <= bytes_max
        )
        stack = ExitStack()
        try:
            stack.enter_context(admission.permit(step, caller=str(number)))
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


def admission(*, jobs_max: int = 99, bytes_max: int = 999, tokens_max: int = 999) -> Admission:
    """Give an admission with limits that are out of the way unless set."""
    return Admission(jobs_max=jobs_max, bytes_max=bytes_max, tokens_max=tokens_max)


def refused(queue: Admission) -> Overloaded:
    """Give the refusal of one request of one byte."""
    with pytest.raises(Overloaded) as caught, queue.permit(1, caller="another"):
        pass
    return caught.value


def test_an_oversize_request_enters_alone_only() -> None:
    """Refused beside another, or it would never fit; let in by itself, and then alone."""
    queue = admission(bytes_max=10)

    with queue.permit(1), pytest.raises(Overloaded) as beside, queue.permit(11):
        pass
    with queue.permit(11):
        assert queue.bytes == 11
        refused(queue)

    assert str(beside.value) == "The queue is full by size, the limit is 10 bytes."


def test_tokens_beyond_the_limit_enter_alone_only() -> None:
    """The same by tokens, which are asked for when the prompts are encoded."""
    queue = admission(tokens_max=10)
    with queue.permit(1, caller="a"), queue.permit(1, caller="b"), queue.permit_tokens(1):
        with pytest.raises(Overloaded) as beside, queue.permit_tokens(11, caller="b"):
            pass
        with queue.permit_tokens(9, caller="b"):
            assert queue.tokens == 10
    with queue.permit(1), queue.permit_tokens(11):
        assert queue.tokens == 11

    assert str(beside.value) == "The queue is full by tokens, the limit is 10 tokens."
    assert (beside.value.limit, beside.value.unit) == (10, "tokens")
    assert (queue.jobs, queue.bytes, queue.tokens) == (0, 0, 0)


def test_a_queue_full_by_tokens_refuses_at_receipt() -> None:
    """No request costs its encoding when nothing could be let in after it."""
    queue = admission(tokens_max=10)
    with queue.permit(1), queue.permit_tokens(10):
        assert refused(queue).unit == "tokens"
    with queue.permit(1), queue.permit_tokens(9), queue.permit(1, caller="another"):
        assert queue.jobs == 2


def test_a_permit_is_given_back_after_an_exception() -> None:
    """Whatever happens to a request, its room is free again."""
    queue = admission(jobs_max=1)

    with pytest.raises(KeyError), queue.permit(5), queue.permit_tokens(7):
        raise KeyError

    assert (queue.jobs, queue.bytes, queue.tokens) == (0, 0, 0)


def test_retry_after_is_the_time_for_the_tokens_that_wait() -> None:
    """100 tokens in half a second are 5 ms each: 300 tokens that wait take 1.5 s."""
    queue = admission(jobs_max=2)
    queue.observe(0.5, jobs=10, tokens=100)

    with queue.permit(1), queue.permit_tokens(100), queue.permit(1), queue.permit_tokens(200):
        refusal = refused(queue)

    assert (refusal.retry_after_ms, refusal.limit) == (1500, 2)


def test_a_request_that_is_not_encoded_counts_as_the_mean_one() -> None:
    """50 ms each of the last batch's ten: three unread are 150 ms, beside 100 tokens of 5 ms."""
    queue = admission(jobs_max=4)
    queue.observe(0.5, jobs=10, tokens=100)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(queue.permit(1))
        assert refused(queue).retry_after_ms == 200
        stack.enter_context(queue.permit_tokens(100))

        assert refused(queue).retry_after_ms == 650


def test_the_rate_follows_what_is_observed() -> None:
    """The newest batch weighs a fifth: 5 ms a token, then 5 + 0.2 * (10 - 5) = 6."""
    queue = admission(jobs_max=1)
    queue.observe(0.5, jobs=1, tokens=100)
    queue.observe(1.0, jobs=1, tokens=100)
    with queue.permit(1):
        assert refused(queue).retry_after_ms == 600
        with queue.permit_tokens(50):
            assert refused(queue).retry_after_ms == 300


def test_single_requests_do_not_make_full_batches_dear() -> None:
    """By hand: 20 ms for 120 tokens alone, 90 ms for 8,192 together: 11 us a token.

    (0.8 * 20 + 0.2 * 90) / (0.8 * 120 + 0.2 * 8192) ms = 34 / 1734.4, 20 us, after one batch.
    """
    queue = admission()
    for _ in range(50):
        queue.observe(0.020, jobs=1, tokens=120)
    queue.observe(0.090, jobs=68, tokens=8192)

    assert queue.seconds_for(1) == pytest.approx(19.6e-6, rel=0.01)


def test_a_batch_without_tokens_says_nothing_about_them() -> None:
    """All its questions were refused before: 5 ms a token it stays."""
    queue = admission(jobs_max=1)
    queue.observe(0.5, jobs=1, tokens=100)
    queue.observe(0.1, jobs=1, tokens=0)

    with queue.permit(1), queue.permit_tokens(100):
        assert refused(queue).retry_after_ms == 500


def test_before_anything_is_measured_a_retry_waits_a_little() -> None:
    """Never 0: a caller that obeys must not spin."""
    queue = admission(jobs_max=1)
    with queue.permit(1):
        assert (refused(queue).retry_after_ms or 0) >= 10


def test_a_queue_longer_than_the_deadline_refuses_at_once() -> None:
    """By hand: a second a token, 8 tokens held: who has 10 s is let in, who has 9 s is not."""
    admission = Admission(jobs_max=9, bytes_max=100, tokens_max=100)
    admission.observe(4.0, jobs=1, tokens=4)

    with admission.permit(1, within_s=0.1), admission.permit_tokens(8):
        with admission.permit(1, within_s=10.0), admission.permit_tokens(0):
            pass
        with pytest.raises(Overloaded) as caught, admission.permit(1, within_s=9.0):
            pass

        with (
            pytest.raises(Overloaded),
            admission.permit(1, within_s=10.0),
            admission.permit_tokens(1, within_s=9.0),
        ):
            pass

    assert caught.value.retry_after_ms == 8000
    assert str(caught.value) == (
        "The queue takes longer than the deadline allows, the limit is 9000 ms."
    )
    assert (admission.jobs, admission.tokens) == (0, 0)


@pytest.mark.parametrize("limit", ["jobs_max", "bytes_max"])
def test_the_last_eighth_is_for_callers_who_hold_nothing(limit: str) -> None:
    """Of 16 places one caller gets 14; two others still get one each, and then all is full."""
    queue = admission(**{limit: 16})
    with ExitStack() as stack:
        for _ in range(14):
            stack.enter_context(queue.permit(1, caller="flood"))
        with pytest.raises(Overloaded):
            queue.permit(1, caller="flood")
        assert queue.full
        stack.enter_context(queue.permit(1, caller="one"))
        stack.enter_context(queue.permit(1, caller="two"))
        with pytest.raises(Overloaded):
            queue.permit(1, caller="three")

    assert (queue.jobs, queue.bytes, queue.full, queue.roomy) == (0, 0, False, True)


def test_the_last_eighth_of_the_tokens_too() -> None:
    """Of 80 tokens one caller fills 70."""
    queue = admission(tokens_max=80)
    with queue.permit(1, caller="flood"), queue.permit_tokens(70, caller="flood"):
        with pytest.raises(Overloaded):
            queue.permit(1, caller="flood")
        with queue.permit(1, caller="one"), queue.permit_tokens(10, caller="one"):
            assert queue.tokens == 80


def test_a_flood_of_one_caller_is_not_anothers_wait() -> None:
    """10 s of one caller's in ten requests: another waits for one of them, which takes 1 s."""
    queue = admission()
    queue.observe(1.0, jobs=1, tokens=10)
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(queue.permit(1, caller="flood"))
            stack.enter_context(queue.permit_tokens(10, caller="flood"))
        with pytest.raises(Overloaded):
            queue.permit(1, caller="flood", within_s=5)
        with queue.permit(1, caller="one", within_s=5):
            assert queue.jobs == 11
        with pytest.raises(Overloaded):
            queue.permit(1, caller="one", within_s=1)


def test_ten_callers_wait_for_each_other() -> None:
    """10 s in ten requests of ten callers: the eleventh waits for all of them."""
    queue = admission()
    queue.observe(1.0, jobs=1, tokens=10)
    with ExitStack() as stack:
        for number in range(10):
            stack.enter_context(queue.permit(1, caller=str(number)))
            stack.enter_context(queue.permit_tokens(10, caller=str(number)))

        with pytest.raises(Overloaded):
            queue.permit(1, caller="eleventh", within_s=12)
        with queue.permit(1, caller="eleventh", within_s=13):
            assert queue.jobs == 11


def test_background_work_enters_a_queue_less_than_half_full() -> None:
    """Two of four places taken: live work may come in, the other may not."""
    queue = admission(jobs_max=4)
    with queue.permit(1), queue.permit(1, background=True):
        with pytest.raises(Overloaded):
            queue.permit(1, background=True)
        with queue.permit(1):
            assert queue.jobs == 3


def test_background_work_is_nobody_elses_wait() -> None:
    """Forty seconds of it: live work goes first, and is neither refused nor told to wait for it."""
    queue = admission()
    queue.observe(1.0, jobs=1, tokens=10)
    with ExitStack() as stack:
        stack.enter_context(queue.permit(1, caller="one"))
        for _ in range(4):
            stack.enter_context(queue.permit(1, caller="replay", background=True))
            tokens = queue.permit_tokens(100, caller="replay", background=True)
            stack.enter_context(tokens)

        assert queue.wait_s() == pytest.approx(1.0)  # "one" itself, not encoded yet
        with (
            queue.permit(1, caller="one", within_s=5),
            queue.permit_tokens(10, caller="one", within_s=5),
        ):
            assert queue.jobs == 6
        with pytest.raises(Overloaded):
            queue.permit_tokens(10, caller="replay", within_s=5, background=True)


def test_background_work_fills_half_of_the_tokens() -> None:
    """They are known late: what came in while the queue was empty may be more than that."""
    queue = admission(tokens_max=100)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(queue.permit(1, caller="replay", background=True))
        stack.enter_context(queue.permit_tokens(40, caller="replay", background=True))
        with pytest.raises(Overloaded):
            queue.permit_tokens(20, caller="replay", background=True)
        with queue.permit_tokens(20, caller="live"):
            assert queue.tokens == 60


def test_what_fits_into_a_time_follows_the_rate() -> None:
    """A few before anything is measured; then by the mean request, the queue first."""
    admission = Admission(jobs_max=100, bytes_max=100, tokens_max=1000)
    assert admission.more_within(60.0) == 8

    admission.observe(2.0, jobs=4, tokens=100)  # half a second each
    assert admission.more_within(3.2) == 6
    with admission.permit(1), admission.permit(1):
        assert admission.more_within(3.2) == 4
        assert admission.more_within(0.1) == 0

    assert admission.more_within(0.1) == 1  # or nothing would ever begin
