"""Whether one more request may wait: by count, bytes and tokens, refused at once and by name."""

from __future__ import annotations

import math
from collections.abc import Callable

from schemas.errors import Overloaded

__all__ = ["Admission", "Permit"]

RETRY_AFTER_MS_MIN = 10
UNMEASURED_MAX = 8
"""Requests that may be fetched while nobody knows how long one takes."""
DEADLINE_SHARE = 0.8
"""A request is let in when the queue takes less than this share of its time: rates vary."""
RATE_WEIGHT = 0.2
"""Weight of the newest batch in the running means."""


class Permit:
    """Room held from the moment it is given until the block ends; to be entered at once.

    Not a generator's context manager: two of those took a tenth of a request's time on the loop.
    """

    __slots__ = ("_amount", "_caller", "_give_back")

    def __init__(self, give_back: Callable[[int, str], None], amount: int, caller: str) -> None:
        self._give_back = give_back
        self._amount = amount
        self._caller = caller

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        self._give_back(self._amount, self._caller)


class Admission:
    """Permits for requests between receipt and reply.

    Count and bytes are known at receipt, tokens once the prompts are encoded: one permit each.
    The last eighth of each limit is for callers who hold nothing: a caller with 10,000 requests
    must not shut out one with a single request.
    Pure bookkeeping for one thread (the event loop's): no clock, no waiting.
    """

    def __init__(self, *, jobs_max: int, bytes_max: int, tokens_max: int) -> None:
        self.jobs_max = jobs_max
        self.bytes_max = bytes_max
        self.tokens_max = tokens_max
        self.jobs = 0
        self.bytes = 0
        self.tokens = 0
        self._held: dict[str, int] = {}
        """Requests of each caller that has any."""
        self._encoded = 0
        self._background_encoded = 0
        self._background_tokens = 0
        """Of these: live work goes first, and does not wait for them."""
        self._each = _Rate()
        self._a_token = _Rate()

    def permit(
        self,
        nbytes: int,
        *,
        caller: str = "",
        within_s: float = math.inf,
        background: bool = False,
    ) -> Permit:
        """Hold room for one request of ``nbytes``; raises :class:`Overloaded` when there is none.

        Nor is one let in behind a queue that takes longer than ``within_s``, the time it has: it
        would take a place, and perhaps the model's time, for an answer that comes too late.

        A request larger than ``bytes_max`` is let in when nothing else is there: it could never
        enter otherwise, and a caller told to retry would retry for ever. ``background`` requests
        are let in while the queue is less than half full.
        """
        held = self._held.get(caller, 0)
        if background and not self.roomy:
            raise self._no_background()
        if self.jobs >= _share(self.jobs_max, held):
            raise self.refusal("The queue is full by count", self.jobs_max, "requests")
        if self.jobs and self.bytes + nbytes > _share(self.bytes_max, held):
            raise self.refusal("The queue is full by size", self.bytes_max, "bytes")
        if self.tokens >= _share(self.tokens_max, held):
            # Whatever it holds: refused before it is encoded.
            raise self.refusal("The queue is full by tokens", self.tokens_max, "tokens")
        self._check_deadline(within_s, held, background=background)
        self.jobs += 1
        self.bytes += nbytes
        self._held[caller] = held + 1
        return Permit(self._give_back, nbytes, caller)

    def permit_tokens(
        self,
        tokens: int,
        *,
        caller: str = "",
        within_s: float = math.inf,
        background: bool = False,
    ) -> Permit:
        """Hold room for the tokens of a request that has its :meth:`permit`, or raise as it does.

        A request larger than ``tokens_max`` is let in when no other tokens are held.
        """
        others = self._held.get(caller, 1) - 1
        if background and self.tokens and 2 * (self.tokens + tokens) > self.tokens_max:
            raise self._no_background()
        if self.tokens and self.tokens + tokens > _share(self.tokens_max, others):
            raise self.refusal("The queue is full by tokens", self.tokens_max, "tokens")
        self._check_deadline(within_s, others, background=background)
        self._encoded += 1
        self.tokens += tokens
        if not background:
            return Permit(self._give_back_tokens, tokens, caller)
        self._background_encoded += 1
        self._background_tokens += tokens
        return Permit(self._give_back_background, tokens, caller)

    @property
    def full(self) -> bool:
        """True when the rest is kept for callers who hold nothing."""
        return (
            self.jobs >= _share(self.jobs_max, 1)
            or self.bytes >= _share(self.bytes_max, 1)
            or self.tokens >= _share(self.tokens_max, 1)
        )

    @property
    def roomy(self) -> bool:
        """True when each limit is less than half used."""
        return (
            2 * self.jobs < self.jobs_max
            and 2 * self.bytes < self.bytes_max
            and 2 * self.tokens < self.tokens_max
        )

    def _give_back(self, nbytes: int, caller: str) -> None:
        self.jobs -= 1
        self.bytes -= nbytes
        left = self._held[caller] - 1
        if left:
            self._held[caller] = left
        else:
            del self._held[caller]

    def _give_back_tokens(self, tokens: int, _caller: str) -> None:
        self._encoded -= 1
        self.tokens -= tokens

    def _give_back_background(self, tokens: int, caller: str) -> None:
        self._background_encoded -= 1
        self._background_tokens -= tokens
        self._give_back_tokens(tokens, caller)

    def _no_background(self) -> Overloaded:
        text = "The queue is full for background work"
        return self.refusal(text, self.jobs_max, "requests", background=True)

    def _check_deadline(self, within_s: float, held: int, *, background: bool) -> None:
        """Refuse behind a queue that takes too long.

        By the tokens that are held: requests not yet encoded may be of any size, and the mean of
        the last ones, long documents perhaps, would refuse a burst of short ones. A caller who
        holds nothing waits for one request of each other caller, for they take turns.
        """
        ahead: float = self.tokens
        encoded = self._encoded
        if not background:
            ahead -= self._background_tokens
            encoded -= self._background_encoded
        if not held and encoded:
            ahead *= min(len(self._held) / encoded, 1.0)
        if ahead * self._a_token.seconds > within_s * DEADLINE_SHARE:
            raise self.too_late(within_s)

    def refusal(self, what: str, limit: int, unit: str, *, background: bool = False) -> Overloaded:
        """Give the refusal, with the time that the present queue will take."""
        return Overloaded(
            what,
            limit=limit,
            unit=unit,
            retry_after_ms=max(
                round(self.wait_s(background=background) * 1000), RETRY_AFTER_MS_MIN
            ),
        )

    def wait_s(self, *, background: bool = False) -> float:
        """Give the seconds that the present queue will take, by the rate that was measured.

        A request counts by its tokens; one that is not encoded yet counts as the mean request.
        Live work does not wait for what is in the background.
        """
        unread = self.jobs - self._encoded
        tokens = self.tokens if background else self.tokens - self._background_tokens
        return tokens * self._a_token.seconds + unread * self._each.seconds

    def more_within(self, within_s: float) -> int:
        """Give how many mean requests more would end ``within_s``, the present queue first.

        At least one when nothing is there, however slow the model; a few before it is measured.
        """
        if not self._each.seconds:
            return UNMEASURED_MAX - self.jobs
        return max(int((within_s - self.wait_s()) / self._each.seconds), 0 if self.jobs else 1)

    def seconds_for(self, tokens: int) -> float:
        """Give the seconds that the model takes for so many tokens."""
        return tokens * self._a_token.seconds

    def too_late(self, within_s: float) -> Overloaded:
        """Give the refusal of a request that has only ``within_s`` left."""
        limit_ms = max(round(within_s * 1000), 0)
        return self.refusal("The queue takes longer than the deadline allows", limit_ms, "ms")

    def observe(self, seconds: float, *, jobs: int, tokens: int) -> None:
        """Learn how long the model took for a batch."""
        self._each.observe(seconds, jobs)
        if tokens:  # a batch whose every question was refused before has none
            self._a_token.observe(seconds, tokens)


def _share(limit: int, held: int) -> int:
    """Give the part of a limit that a caller who holds so many requests may fill."""
    return limit - limit // 8 if held else limit


class _Rate:
    """Seconds for one of something, by the last batches.

    By the means of both, and not the mean of their quotients: after an hour of single requests,
    each with the whole cost of a call, full batches are known for cheap at the first of them.
    """

    __slots__ = ("_count", "_seconds", "seconds")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._count = 0.0
        self.seconds = 0.0
        """For one; 0 before anything is measured."""

    def observe(self, seconds: float, count: int) -> None:
        """Move both towards those of a batch; the first batch is the mean."""
        weight = RATE_WEIGHT if self._count else 1.0
        self._seconds += weight * (seconds - self._seconds)
        self._count += weight * (count - self._count)
        self.seconds = self._seconds / self._count
