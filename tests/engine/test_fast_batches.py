"""Batches of requests: whose answer is whose, and who pays when something fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from actor.engine.base import CanaryFailed, DecisionResult, Prompt, Question, Scores, Work
from actor.engine.encoding import row_of
from actor.engine.fast_batches import FastBatches
from actor.engine.fast_scorer import FastScorer, Scored
from actor.engine.torch_engine import LOGIT_TOLERANCE, TorchEngine
from schemas.decision import Option
from schemas.errors import Invalid, OutOfMemory, ScoringFailed, SemifError

OPTIONS = (Option(id="a", description="First"), Option(id="b", description="Second"))
TOLERANCE = LOGIT_TOLERANCE["bfloat16"]


@pytest.fixture(params=["tiny_llama", "tiny_qwen35"])
def engine(request: pytest.FixtureRequest, proved: Callable[..., Any]) -> TorchEngine:
    """Give a proved engine with the fast scorer, with attention alone and of the hybrid kind."""
    made: TorchEngine = proved(request.getfixturevalue(request.param), "fast")[0]
    return made


@pytest.fixture
def one_engine(tiny_llama: Path, proved: Callable[..., Any]) -> TorchEngine:
    """Give the engine of one family, for what is the same in all."""
    made: TorchEngine = proved(tiny_llama, "fast")[0]
    return made


def question(name: str, text: str = "Which one?") -> Question:
    """Give a question."""
    return Question(name, text, OPTIONS)


def single(state: Any, name: str = "q", text: str = "Which one?") -> Work:
    """Give a ``score`` request."""
    return Work(False, state, (name,), (question(name, text),))


def several(state: Any, *questions: Question | SemifError) -> Work:
    """Give a ``score_shared`` request."""
    return Work(True, state, tuple(f"{n}" for n in range(len(questions))), questions)


def logits_of(outcome: object) -> list[tuple[float, ...]]:
    """Give the logits of an outcome without errors."""
    assert isinstance(outcome, Scores)
    return [cast("DecisionResult", result).option_logits for result in outcome.results]


class Faulty:
    """The fast scorer with a fault: ``check`` may raise, ``spoil`` damage; calls are recorded."""

    def __init__(
        self,
        scorer: FastScorer,
        check: Callable[[Sequence[Prompt]], None] = lambda _prompts: None,
        spoil: Callable[[Scored], None] = lambda _scored: None,
    ) -> None:
        self.real, self.check, self.spoil = scorer, check, spoil
        self.cache = scorer.cache
        self.sizes: list[int] = []

    def score(self, prompts: Sequence[Prompt]) -> Scored:
        self.sizes.append(len(prompts))
        self.check(prompts)
        scored = self.real.score(prompts)
        self.spoil(scored)
        return scored


def with_fault(engine: TorchEngine, **faults: Any) -> tuple[TorchEngine, Faulty]:
    """Give the engine with a faulty scorer, and its record."""
    fast = cast("FastBatches", engine.fast)
    faulty = Faulty(fast.scorer, **faults)
    return replace(engine, fast=replace(fast, scorer=cast("FastScorer", faulty))), faulty


def test_requests_of_all_kinds_share_a_pass_and_get_their_own_answers(engine: TorchEngine) -> None:
    """Fields and logits are SemIf's for the request's own row, within the tolerance."""
    works = [
        single({"n": 1}, "one"),
        several("A state.", question("x"), Invalid("No.", field="f"), question("y", "And so?")),
        single("word " * 80, "two"),
        several("word " * 80, question("z", "Longer " * 9)),
    ]

    outcomes = engine.score([engine.prepare(work) for work in works])

    for work, outcome in zip(works, outcomes, strict=True):
        assert isinstance(outcome, Scores)
        assert outcome.batch_rows == 5
        for asked, result in zip(work.questions, outcome.results, strict=True):
            if isinstance(asked, SemifError):
                assert result is asked
                continue
            assert isinstance(result, DecisionResult)
            wanted = engine.reference.score(row_of(work.state, asked))
            for name in ("id", "option_ids", "prompt_sha256", "input_tokens", "prompt_version"):
                assert getattr(result, name) == getattr(wanted, name)
            pairs = zip(result.option_logits, wanted.option_logits, strict=True)
            assert max(abs(a - b) for a, b in pairs) <= TOLERANCE
            assert sum(result.probabilities) == pytest.approx(1)
            assert result.model.serving_config == "semif-actor-fast-v1"


def test_other_questions_and_other_ids_change_no_answer(engine: TorchEngine) -> None:
    """What is asked beside a decision, and what it is called, is of no influence."""
    alone = logits_of(engine.score([engine.prepare(several("A state.", question("x")))])[0])[0]

    beside = several("A state.", question("other", "What else?"), question("renamed"))
    together = logits_of(engine.score([engine.prepare(beside)])[0])[1]

    assert max(abs(a - b) for a, b in zip(alone, together, strict=True)) <= TOLERANCE


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_long_and_short_in_either_order(engine: TorchEngine, order: tuple[int, ...]) -> None:
    """A long row beside a short one, each with the answer it has alone."""
    works = [single("word " * 300), single("x")]

    outcomes = engine.score([engine.prepare(works[index]) for index in order])

    for index, outcome in zip(order, outcomes, strict=True):
        alone = engine.score([engine.prepare(works[index])])[0]
        pairs = zip(logits_of(outcome)[0], logits_of(alone)[0], strict=True)
        assert max(abs(a - b) for a, b in pairs) <= TOLERANCE


def test_more_questions_than_rows_fit_are_all_answered(engine: TorchEngine) -> None:
    """70 questions in one request, 64 rows in a pass."""
    questions = [question(f"q{n}", f"Is it {n}?") for n in range(70)]

    [outcome] = engine.score([engine.prepare(several("A state.", *questions))])

    assert isinstance(outcome, Scores)
    assert [cast("DecisionResult", each).id for each in outcome.results] == [
        each.id for each in questions
    ]
    assert outcome.batch_rows <= 64


@pytest.mark.parametrize("bad", range(5))
def test_one_row_that_raises_costs_its_neighbours_nothing(
    one_engine: TorchEngine, bad: int
) -> None:
    """Wherever it stands: the others are scored, it alone fails."""
    works = [single(f"state {n}") for n in range(5)]
    prepared = [one_engine.prepare(work) for work in works]
    poison = prepared[bad].prompts[0]

    def check(prompts: Sequence[Prompt]) -> None:
        if poison in prompts:
            raise RuntimeError("a kernel that does not like this row")

    faulty, _ = with_fault(one_engine, check=check)

    outcomes = faulty.score(prepared)

    assert [isinstance(outcome, ScoringFailed) for outcome in outcomes] == [
        n == bad for n in range(5)
    ]


def test_a_number_that_is_none_is_that_rows_error_alone(one_engine: TorchEngine) -> None:
    """NaN logits in the second of three rows."""

    def spoil(scored: Scored) -> None:
        scored.logits[1][5] = float("nan")

    faulty, record = with_fault(one_engine, spoil=spoil)
    work = several("A state.", *(question(f"q{n}", f"Is it {n}?") for n in range(3)))

    [outcome] = faulty.score([faulty.prepare(work)])

    assert isinstance(outcome, Scores)
    kinds = [type(result) for result in outcome.results]
    assert kinds == [DecisionResult, ScoringFailed, DecisionResult]
    assert record.sizes == [3]


def limit_rows(most: int) -> Callable[[Sequence[Prompt]], None]:
    """Give a check like a card with room for so many rows."""

    def check(prompts: Sequence[Prompt]) -> None:
        if len(prompts) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    return check


@pytest.mark.parametrize(
    ("room", "sizes", "failed"),
    [
        (8, [8], []),
        (4, [8, 4, 4], []),
        (3, [8, 4, 4], range(8)),
    ],
)
def test_out_of_memory_splits_the_batch_once(
    one_engine: TorchEngine, room: int, sizes: list[int], failed: Sequence[int]
) -> None:
    """Each half by itself, and what does not fit then is its rows' error; no more tries."""
    one_engine.fast.scorer.cache.clear()  # type: ignore[union-attr]
    small, record = with_fault(one_engine, check=limit_rows(room))

    outcomes = small.score([small.prepare(single(f"state {n}")) for n in range(8)])

    assert record.sizes == sizes
    found = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, OutOfMemory)]
    assert found == list(failed)


def test_the_prefix_cache_goes_before_the_batch_is_split(one_engine: TorchEngine) -> None:
    """Memory that only the cache took is given to the batch, whole."""
    fast = cast("FastBatches", one_engine.fast)
    one_engine.score([one_engine.prepare(single("word " * 60))])
    assert len(fast.scorer.cache) > 0

    def check(_prompts: Sequence[Prompt]) -> None:
        if len(fast.scorer.cache):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    small, record = with_fault(one_engine, check=check)

    outcomes = small.score([small.prepare(single(f"state {n}")) for n in range(4)])

    assert record.sizes == [4, 4]
    assert all(isinstance(outcome, Scores) for outcome in outcomes)


def test_errors_hold_nothing_of_the_try_that_failed(one_engine: TorchEngine) -> None:
    """No traceback and no chain: an outcome may outlive its request (pytorch issue 18853)."""
    small, _ = with_fault(one_engine, check=limit_rows(0))

    outcomes = small.score([small.prepare(single(f"state {n}")) for n in range(3)])

    for error in outcomes:
        assert isinstance(error, OutOfMemory)
        assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


def test_a_request_of_errors_alone_needs_no_model(one_engine: TorchEngine) -> None:
    """Its errors in order; an empty batch is no call."""
    faulty, record = with_fault(one_engine)
    work = several("A state.", Invalid("No.", field="f"), Invalid("Nor.", field="g"))

    [outcome] = faulty.score([faulty.prepare(work)])

    assert isinstance(outcome, Scores)
    assert outcome.results == work.questions
    assert (record.sizes, faulty.score([])) == ([], [])


def test_the_canary_sings_through_the_fast_scorer(engine: TorchEngine) -> None:
    """It passes again and again, and a scorer whose logits moved is noticed."""

    def spoil(scored: Scored) -> None:
        scored.logits[0][0] += 2 * TOLERANCE

    for _ in range(3):
        engine.canary()
    moved, _ = with_fault(engine, spoil=spoil)
    with pytest.raises(CanaryFailed, match="a logit moved by"):
        moved.canary()


def test_health_names_scorer_kernel_and_cache(engine: TorchEngine) -> None:
    """What an operator sees of the fast path."""
    engine.score([engine.prepare(single("word " * 70))])

    health = engine.health()

    assert (health.scorer, health.attention) == ("fast", "flash-cpu")
    assert health.prefix_cache is not None
    assert 0 < health.prefix_cache.bytes <= health.prefix_cache.bytes_max
    assert health.prefix_cache.entries > 0
