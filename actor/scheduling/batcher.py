"""Which jobs go to the GPU next: full batches, states together, no caller left out.

The rule:

- A batch begins by turns with the job that has waited longest, so that none is passed for ever,
  and with the caller whose turn it is, so that jobs that fill whole batches shut nobody out.
- Then the callers follow in turn, one job each, the oldest of each first. A caller whose oldest
  does not fit sits this batch out and keeps its turn.
- Behind each of these jobs come others of the same state, whoever asked, in order of arrival:
  they cost only their tokens beyond the state. While other callers wait, such favours take at most
  half of each limit.
- A job over the limits is a batch by itself.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from actor.scheduling.job import Job

__all__ = ["Batcher"]


@dataclass(slots=True, eq=False)
class _State:
    """The waiting jobs of one state, compared by identity."""

    key: bytes
    tokens: int
    jobs: OrderedDict[Job, None] = field(default_factory=OrderedDict)


@dataclass(slots=True)
class _Room:
    """What is left of a row limit and a token limit."""

    rows: int
    tokens: int

    def holds(self, rows: int, tokens: int) -> bool:
        return rows <= self.rows and tokens <= self.tokens

    def take(self, rows: int, tokens: int) -> None:
        self.rows -= rows
        self.tokens -= tokens


class _Batch:
    """A batch in the making."""

    def __init__(self, *, tokens_max: int, rows_max: int) -> None:
        self.jobs: list[Job] = []
        self.states: set[_State] = set()
        self.room = _Room(rows_max, tokens_max)
        self.favours = _Room(rows_max // 2, tokens_max // 2)

    @property
    def full(self) -> bool:
        return self.room.rows <= 0 or self.room.tokens <= 0

    def tokens_of(self, job: Job, state: _State) -> int:
        """Give the tokens that ``job`` would add."""
        return job.tokens - (state.tokens if state in self.states else 0)

    def add(self, job: Job, state: _State) -> None:
        self.room.take(job.rows, self.tokens_of(job, state))
        self.states.add(state)
        self.jobs.append(job)


class Batcher:
    """The waiting jobs. Pure: no clock, no asyncio, no I/O; one thread uses it.

    Every order is an :class:`OrderedDict`, because jobs leave from the middle too, and a ``dict``
    takes longer to find its first key the more of them have left before it.
    """

    def __init__(self, *, tokens_max: int, rows_max: int) -> None:
        self._tokens_max = tokens_max
        self._rows_max = rows_max
        self._by_age: OrderedDict[Job, _State] = OrderedDict()
        self._by_caller: OrderedDict[str, OrderedDict[Job, None]] = OrderedDict()
        """In order of turns: who was served last stands last."""
        self._by_state: dict[bytes, _State] = {}
        self._begin_by_turn = False

    def __len__(self) -> int:
        return len(self._by_age)

    def append(self, job: Job) -> None:
        """Add a job behind all others."""
        key = job.prepared.state_key
        state = self._by_state.get(key)
        if state is None:
            state = self._by_state[key] = _State(key, job.prepared.state_tokens)
        state.jobs[job] = None
        self._by_age[job] = state
        self._by_caller.setdefault(job.caller, OrderedDict())[job] = None

    def discard(self, job: Job) -> None:
        """Let go of a job that waits; one that was taken before is none of ours."""
        state = self._by_age.pop(job, None)
        if state is None:
            return
        del state.jobs[job]
        if not state.jobs:
            del self._by_state[state.key]
        own = self._by_caller[job.caller]
        del own[job]
        if not own:
            del self._by_caller[job.caller]

    def next_batch(self) -> list[Job]:
        """Take the jobs to score together; empty when none waits. Abandoned ones are dropped."""
        first = self._first()
        if first is None:
            return []
        batch = _Batch(tokens_max=self._tokens_max, rows_max=self._rows_max)
        self._serve(first, batch)
        turns = deque(self._by_caller)
        while turns and not batch.full:
            caller = turns.popleft()
            job = self._oldest_of(self._by_caller.get(caller, {}))
            if job is not None and self._fits(job, batch):
                self._serve(job, batch)
                turns.append(caller)
        return batch.jobs

    def take_all(self) -> list[Job]:
        """Take every waiting job, to fail it."""
        jobs = list(self._by_age)
        self._by_age.clear()
        self._by_caller.clear()
        self._by_state.clear()
        return jobs

    def in_turn(self) -> list[Job]:
        """Give the waiting jobs about as they will be served: callers in turn; they stay."""
        found: list[Job] = []
        turns = deque(map(iter, self._by_caller.values()))
        while turns:  # each step ends a caller or finds a job: a flood beside many callers is cheap
            job = next(turns[0], None)
            if job is None:
                turns.popleft()
            else:
                found.append(job)
                turns.rotate(-1)
        return found

    def oldest_enqueued_s(self) -> float | None:
        """Give the arrival time of the job that has waited longest, if any waits."""
        job = self._oldest_of(self._by_age)
        return None if job is None else job.enqueued_s

    def _first(self) -> Job | None:
        """Give the job that the next batch begins with."""
        oldest = self._oldest_of(self._by_age)
        if oldest is None:
            return None
        self._begin_by_turn = not self._begin_by_turn
        if self._begin_by_turn:
            return oldest
        # Somebody waits for ``oldest``: this ends. Callers who all gave up are dropped on the way.
        while (job := self._oldest_of(next(iter(self._by_caller.values())))) is None:
            continue
        return job

    def _oldest_of(self, jobs: Mapping[Job, object]) -> Job | None:
        """Give the first of ``jobs`` that somebody waits for, and drop those before it."""
        while jobs:
            job = next(iter(jobs))
            if not job.abandoned:
                return job
            self.discard(job)
        return None

    def _fits(self, job: Job, batch: _Batch) -> bool:
        return batch.room.holds(job.rows, batch.tokens_of(job, self._by_age[job]))

    def _serve(self, job: Job, batch: _Batch) -> None:
        """Move a job whose turn it is into the batch, and behind it those of its state."""
        self._by_caller.move_to_end(job.caller)
        state = self._by_age[job]
        self._move(job, batch)
        while (other := self._oldest_of(state.jobs)) and self._fits(other, batch):
            tokens = batch.tokens_of(other, state)
            if len(self._by_caller) > 1 and not batch.favours.holds(other.rows, tokens):
                return
            batch.favours.take(other.rows, tokens)
            self._move(other, batch)

    def _move(self, job: Job, batch: _Batch) -> None:
        batch.add(job, self._by_age[job])
        self.discard(job)
