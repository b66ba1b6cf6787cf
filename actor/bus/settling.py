"""The last word on a delivery: done, once more later, or never again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from actor.bus.asking import Asker, Unanswered
from actor.bus.connection import Connection
from actor.bus.dead_letters import DeadLetters
from actor.bus.delivery import Delivery, Done, Hopeless, Retry, Verdict

__all__ = ["Held", "Settling"]

_log = structlog.get_logger()

ACK, NAK, TERM, IN_PROGRESS = b"+ACK", b"-NAK", b"+TERM", b"+WPI"
GAVE_UP = "gave_up"
"""Code of a message whose every delivery failed."""
IN_PROGRESS_SHARE = 3
"""Words that a delivery is worked on within ``ack_wait``: one may be lost."""
CONFIRM_WITHIN_S = 2.0
CONFIRM_TRIES = 3
RETRY_MIN_S = 1.0
"""First delay; each further one is twice as long, up to ``ack_wait``."""
NS = 1_000_000_000


class Held:
    """A delivery that is being worked on, and where to acknowledge it."""

    __slots__ = ("ack_subject", "deliveries", "delivery")

    def __init__(self, delivery: Delivery, ack_subject: str) -> None:
        self.delivery = delivery
        self.ack_subject = ack_subject
        self.deliveries = delivery.deliveries

    def renew(self, delivery: Delivery, ack_subject: str) -> None:
        """Take the acknowledgement's subject of a newer delivery of the same message."""
        self.ack_subject = ack_subject
        self.deliveries = delivery.deliveries


class Settling:
    """Acknowledges, gives back and buries, and counts what it did."""

    def __init__(
        self,
        connection: Connection,
        asker: Asker,
        dead_letters: DeadLetters,
        rest_of: Callable[[Delivery], str],
        done_already: Callable[[Delivery], Awaitable[bool | None]] | None,
        *,
        source: str,
        ack_wait_s: float,
        deliveries_max: int,
    ) -> None:
        self._connection = connection
        self._asker = asker
        self._dead_letters = dead_letters
        self._rest_of = rest_of
        self._done_already = done_already
        self._source = source
        self._ack_wait_s = ack_wait_s
        self._deliveries_max = deliveries_max
        self.deliveries = 0
        self.outcomes: Counter[str] = Counter()
        self.retries = 0
        self.dead = 0
        self.dead_unstored = 0
        self.unconfirmed = 0

    def too_late(self, held: Held) -> Hopeless | None:
        """Tell whether the delivery is one too many: whoever tried it last died of it, perhaps."""
        if held.deliveries <= self._deliveries_max:
            return None
        return Hopeless(GAVE_UP, f"delivered {self._deliveries_max} times without an end")

    async def settle(self, held: Held, verdict: Verdict) -> None:
        """Make the verdict true at the server. Raises nothing but a cancellation."""
        if isinstance(verdict, Retry):
            if held.deliveries < self._deliveries_max:
                await self._retry(held, verdict)
                return
            verdict = Hopeless(GAVE_UP, f"{verdict.code}: {verdict.reason}")
        if isinstance(verdict, Hopeless):
            if verdict.code == GAVE_UP and self._done_already is not None:
                known = await self._done_already(held.delivery)
                if known is None:  # a result and a dead letter would be two ends: ask again later
                    self.retries += 1
                    await self._nak(held, self._ack_wait_s)
                    return
                if known:
                    await self.settle(held, Done())
                    return
            await self._bury(held, verdict)
        elif isinstance(verdict, Done):
            self.outcomes[verdict.code] += 1
            await self._confirm(held, ACK, verdict.generation)

    async def give_back(self, held: Held) -> None:
        """Let another actor have it at once."""
        self.retries += 1
        await self._connection.publish(held.ack_subject, NAK)

    async def keep(self, held: Mapping[int, Held]) -> None:
        """Say of each delivery held that it is worked on, until cancelled."""
        interval_s = self._ack_wait_s / IN_PROGRESS_SHARE
        while True:
            await asyncio.sleep(interval_s)
            for each in list(held.values()):
                await self._connection.publish(each.ack_subject, IN_PROGRESS)

    async def _retry(self, held: Held, verdict: Retry) -> None:
        self.retries += 1
        most_s = min(RETRY_MIN_S * 2 ** (held.deliveries - 1), self._ack_wait_s)
        # Spread: what failed together must not come back together.
        delay_s = max(random.uniform(most_s / 2, most_s), verdict.after_s)  # noqa: S311
        _log.info(
            "to be delivered again",
            source=self._source,
            sequence=held.delivery.sequence,
            deliveries=held.deliveries,
            code=verdict.code,
            reason=verdict.reason,
            delay_s=round(delay_s, 3),
        )
        await self._nak(held, delay_s)

    async def _nak(self, held: Held, delay_s: float) -> None:
        # Unconfirmed: when it is lost, the end of ack_wait does the same.
        delay = msgspec.json.encode({"delay": int(delay_s * NS)})
        await self._connection.publish(held.ack_subject, NAK + b" " + delay)

    async def _bury(self, held: Held, verdict: Hopeless) -> None:
        delivery = msgspec.structs.replace(held.delivery, deliveries=held.deliveries)
        refused = await self._dead_letters.publish(
            delivery, rest=self._rest_of(delivery), code=verdict.code, reason=verdict.reason
        )
        if refused is not None:
            # It stays in its stream, whatever its deliveries: better tried for ever than lost.
            self.dead_unstored += 1
            await self._nak(held, self._ack_wait_s)
            return
        self.dead += 1
        self.outcomes[verdict.code] += 1
        await self._confirm(held, TERM + b" " + verdict.code.encode())

    async def _confirm(self, held: Held, word: bytes, generation: int | None = None) -> None:
        """Say it until the server has heard it, for a while; else it is delivered again.

        And done again, for nothing: its result or dead letter has the same message id.
        """
        for _ in range(CONFIRM_TRIES):
            try:
                await self._asker.ask(
                    held.ack_subject, word, within_s=CONFIRM_WITHIN_S, generation=generation
                )
            except Unanswered:
                continue
            return
        self.unconfirmed += 1
