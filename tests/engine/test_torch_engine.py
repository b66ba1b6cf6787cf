"""The engine: requests in, SemIf's results or one error each out, and a canary that notices."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from semif_phase1 import direct, shared

from actor.engine.base import CanaryFailed, DecisionResult, Question, Scores, Work
from actor.engine.encoding import row_of
from actor.engine.ledger import Ledger
from actor.engine.prefix import upstream_of
from actor.engine.proofs import prove
from actor.engine.reference_scorer import ReferenceScorer
from actor.engine.torch_engine import TorchEngine, group_rows
from actor.settings import Settings
from schemas.decision import Option
from schemas.errors import ControlText, Invalid, OutOfMemory, ScoringFailed, SemifError

OPTIONS = (Option(id="a", description="First"), Option(id="b", description="Second"))
TOKENS_MAX = 512


def question(name: str, text: str = "Which one?") -> Question:
    """Give a question."""
    return Question(name, text, OPTIONS)


def shared_work(*questions: Question | SemifError) -> Work:
    """Give a shared request."""
    return Work(True, "A state.", tuple(f"{n}" for n in range(len(questions))), questions)


FAMILIES = ("tiny_llama", "tiny_qwen3", "tiny_qwen35")


@pytest.fixture(params=FAMILIES)
def engine(request: pytest.FixtureRequest, proved: Callable[..., Any]) -> TorchEngine:
    """Give a proved engine of each family."""
    made: TorchEngine = proved(request.getfixturevalue(request.param))[0]
    return made


@pytest.fixture(params=[*FAMILIES, "demo_model"])
def any_engine(request: pytest.FixtureRequest, proved: Callable[..., Any]) -> TorchEngine:
    """Give a proved engine of each family, and one of real weights."""
    made: TorchEngine = proved(request.getfixturevalue(request.param))[0]
    return made


@pytest.fixture
def one_engine(tiny_llama: Path, proved: Callable[..., Any]) -> TorchEngine:
    """Give the proved engine of one family, for what is the same in all."""
    made: TorchEngine = proved(tiny_llama)[0]
    return made


@pytest.fixture
def llama(tiny_llama: Path) -> TorchEngine:
    """Give an engine whose weights a test may damage."""
    settings = Settings(
        model=tiny_llama, device="cpu", max_tokens=256, batch_tokens_max=1024, scorer="reference"
    )
    return prove(settings, Ledger(lambda _proof: None))


def scored(outcome: object) -> Scores:
    """Give an outcome that is known to be scores."""
    assert isinstance(outcome, Scores)
    return outcome


def results_of(outcome: object) -> list[DecisionResult]:
    """Give the results of an outcome without errors."""
    results = scored(outcome).results
    assert all(isinstance(result, DecisionResult) for result in results)
    return cast("list[DecisionResult]", list(results))


def check_equal(result: DecisionResult, expected: dict[str, Any]) -> None:
    """Compare every field that SemIf gives, but the times."""
    found = msgspec.json.decode(msgspec.json.encode(result))
    for name in expected.keys() - {"forward_seconds", "total_seconds"}:
        assert found[name] == expected[name], name


def test_score_is_semifs_score(any_engine: TorchEngine) -> None:
    """One request, one result: SemIf's own fields and values."""
    work = Work(False, {"a": [1, "x"]}, ("q",), (question("q"),))

    [outcome] = any_engine.score([any_engine.prepare(work)])

    [result] = results_of(outcome)
    reference = any_engine.reference
    metadata = msgspec.to_builtins(reference.info)
    row = row_of(work.state, question("q"))
    check_equal(
        result, direct.score(reference.model, reference.tokenizer, row, metadata, TOKENS_MAX)
    )


def test_shared_is_semifs_score_shared(
    any_engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions of different lengths over one state, against SemIf without the wrapper."""
    state = {"message": "The parcel arrived on Tuesday"}
    questions = tuple(question(f"q{n}", "Is it" + " so" * n + "?") for n in range(1, 6))
    work = Work(True, state, tuple(q.id for q in questions), questions)

    [outcome] = any_engine.score([any_engine.prepare(work)])

    reference = any_engine.reference
    monkeypatch.setattr(shared, "_state_prefix", upstream_of(shared._state_prefix))
    expected, timing = shared.score_shared(
        reference.model,
        reference.tokenizer,
        [row_of(state, each) for each in questions],
        msgspec.to_builtins(reference.info),
        TOKENS_MAX,
    )
    for result, wanted in zip(results_of(outcome), expected, strict=True):
        check_equal(result, wanted)
    assert scored(outcome).prefix_tokens_reused == 4 * timing["prefix_tokens"]


def test_shared_equals_score_within_the_formats_steps(engine: TorchEngine) -> None:
    """Prefix reuse changes the order of sums, not the answer (random weights, bfloat16)."""
    questions = [question(f"q{n}", f"Is it number {n}?") for n in range(5)]

    [outcome] = engine.score([engine.prepare(shared_work(*questions))])

    for result, asked in zip(results_of(outcome), questions, strict=True):
        alone = engine.reference.score(row_of("A state.", asked))
        assert result.prompt_sha256 == alone.prompt_sha256
        difference = max(
            abs(a - b) for a, b in zip(result.option_logits, alone.option_logits, strict=True)
        )
        assert difference <= 0.05 * max(map(abs, alone.option_logits)) + 0.05
    assert scored(outcome).batch_rows == 5
    assert scored(outcome).prefix_tokens_reused > 4 * 20


def test_a_bad_question_keeps_its_place(engine: TorchEngine) -> None:
    """Errors from before and from the encoder stand where their questions stood."""
    refused = Invalid("refused before")
    work = shared_work(question("0"), refused, question("2", "<|im_end|>"), question("3"))

    [outcome] = engine.score([engine.prepare(work)])

    kinds = [type(result) for result in scored(outcome).results]
    assert kinds == [DecisionResult, Invalid, ControlText, DecisionResult]
    assert scored(outcome).results[1] is refused


def test_a_shared_request_of_errors_alone_needs_no_model(engine: TorchEngine) -> None:
    """Nothing is left to score; each question still has its error."""
    work = shared_work(Invalid("one"), question("1", "<|im_end|>"))

    [outcome] = engine.score([engine.prepare(work)])

    assert scored(outcome).batch_rows == 0
    assert all(isinstance(result, SemifError) for result in scored(outcome).results)


def test_a_bad_single_question_is_raised_by_prepare(engine: TorchEngine) -> None:
    """A ``score`` request that cannot be asked never reaches the queue."""
    work = Work(False, "<|im_end|>", ("q",), (question("q"),))

    with pytest.raises(ControlText):
        engine.prepare(work)


def test_large_requests_are_cut_into_groups(engine: TorchEngine) -> None:
    """More rows than a batch holds are scored all the same, in order."""
    small = replace(engine, batch_rows_max=3)
    questions = [question(f"q{n}") for n in range(8)]

    [whole, outcome] = [
        each.score([each.prepare(shared_work(*questions))])[0] for each in (engine, small)
    ]

    assert [result.id for result in results_of(outcome)] == [f"q{n}" for n in range(8)]
    assert (scored(whole).batch_rows, scored(outcome).batch_rows) == (8, 3)
    # Each group reads the prefix once: 8 rows less 1, and 3 + 3 + 2 rows less 1 each.
    prefix_tokens = scored(whole).prefix_tokens_reused // 7
    assert scored(outcome).prefix_tokens_reused == (2 + 2 + 1) * prefix_tokens


class LimitedScorer(ReferenceScorer):
    """SemIf on a card with room for ``rows_max`` rows."""

    rows_max: int = 0
    calls: list[int]

    def score_shared(self, rows: Any) -> tuple[list[DecisionResult], int]:
        self.calls.append(len(rows))
        if len(rows) > self.rows_max:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().score_shared(rows)

    def score(self, row: Any) -> DecisionResult:
        self.calls.append(1)
        if self.rows_max < 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().score(row)


def limited(engine: TorchEngine, rows_max: int) -> tuple[TorchEngine, list[int]]:
    """Give the engine with a scorer that runs out of memory, and the sizes it was called with."""
    r = engine.reference
    scorer = LimitedScorer(r.binding, r.model, r.tokenizer, r.info, r.tokens_max)
    calls: list[int] = []
    object.__setattr__(scorer, "rows_max", rows_max)
    object.__setattr__(scorer, "calls", calls)
    return replace(engine, reference=scorer), calls


@pytest.mark.parametrize(
    ("rows_max", "calls", "failed"),
    [(4, [8, 4, 4], 0), (3, [8, 4, 4], 8), (8, [8], 0)],
)
def test_out_of_memory_splits_the_batch_once(
    one_engine: TorchEngine, rows_max: int, calls: list[int], failed: int
) -> None:
    """Each half by itself; what does not fit then is that half's error, and no more tries."""
    small, called = limited(one_engine, rows_max)
    questions = [question(f"q{n}") for n in range(8)]

    [outcome] = small.score([small.prepare(shared_work(*questions))])

    assert called == calls
    errors = [r for r in scored(outcome).results if isinstance(r, OutOfMemory)]
    assert len(errors) == failed
    names = [r.id for r in scored(outcome).results if isinstance(r, DecisionResult)]
    assert names == [f"q{n}" for n in range(8 - failed)]


def test_a_half_that_fits_is_answered_beside_one_that_does_not(one_engine: TorchEngine) -> None:
    """Five rows on room for two: the first two have results, the other three their error."""
    small, called = limited(one_engine, 2)
    questions = [question(f"q{n}") for n in range(5)]

    [outcome] = small.score([small.prepare(shared_work(*questions))])

    assert called == [5, 2, 3]
    kinds = [type(result) for result in scored(outcome).results]
    assert kinds == [DecisionResult] * 2 + [OutOfMemory] * 3
    assert scored(outcome).batch_rows == 2


def test_one_row_that_does_not_fit_is_not_tried_again(one_engine: TorchEngine) -> None:
    """There is nothing to split, shared or not; the canary cannot be asked either."""
    small, called = limited(one_engine, 0)
    single = Work(False, "s", ("q",), (question("q"),))

    outcomes = small.score([small.prepare(shared_work(question("q"))), small.prepare(single)])

    assert called == [1, 1]
    assert [type(result) for result in scored(outcomes[0]).results] == [OutOfMemory]
    assert isinstance(outcomes[1], OutOfMemory)
    with pytest.raises(CanaryFailed, match="out_of_memory"):
        small.canary()


class SpoiltScorer(ReferenceScorer):
    """SemIf's answers with one number that is none, as a scorer without its checks might give."""

    field: str = ""

    def _spoil(self, result: DecisionResult) -> DecisionResult:
        first, *others = getattr(result, self.field)
        return msgspec.structs.replace(result, **{self.field: (first * float("nan"), *others)})

    def score(self, row: Any) -> DecisionResult:
        return self._spoil(super().score(row))

    def score_shared(self, rows: Any) -> tuple[list[DecisionResult], int]:
        results, prefix_tokens = super().score_shared(rows)
        return [*results[:-1], self._spoil(results[-1])], prefix_tokens


@pytest.mark.parametrize("field", ["option_logits", "probabilities"])
def test_a_number_that_is_none_never_leaves_the_engine(one_engine: TorchEngine, field: str) -> None:
    """One NaN in one row spoils its call: no answer of it can be trusted."""
    r = one_engine.reference
    scorer = SpoiltScorer(r.binding, r.model, r.tokenizer, r.info, r.tokens_max)
    object.__setattr__(scorer, "field", field)
    spoilt = replace(one_engine, reference=scorer)
    single = Work(False, "s", ("q",), (question("q"),))
    several = shared_work(question("q0"), question("q1"))

    [alone, together] = spoilt.score([spoilt.prepare(single), spoilt.prepare(several)])

    assert isinstance(alone, ScoringFailed)
    assert [type(result) for result in scored(together).results] == [ScoringFailed] * 2
    with pytest.raises(CanaryFailed, match="scoring_failed"):
        spoilt.canary()


def test_errors_after_a_split_hold_nothing_of_the_first_try(one_engine: TorchEngine) -> None:
    """No traceback and no chain: an outcome may outlive its request (pytorch issue 18853)."""
    small, _ = limited(one_engine, 3)
    questions = [question(f"q{n}") for n in range(8)]

    [outcome] = small.score([small.prepare(shared_work(*questions))])

    for error in scored(outcome).results:
        assert isinstance(error, OutOfMemory)
        assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


def test_one_request_that_fails_costs_its_neighbours_nothing(one_engine: TorchEngine) -> None:
    """The requests of a batch are independent."""
    small, _ = limited(one_engine, 1)
    good = small.prepare(shared_work(question("q")))
    bad = small.prepare(shared_work(*(question(f"q{n}") for n in range(4))))

    outcomes = small.score([good, bad, good])

    kinds = [{type(r) for r in scored(outcome).results} for outcome in outcomes]
    assert kinds == [{DecisionResult}, {OutOfMemory}, {DecisionResult}]


def test_the_canary_gives_its_known_answer(engine: TorchEngine) -> None:
    """A model that has not changed passes, again and again."""
    for _ in range(3):
        engine.canary()


def test_the_canary_notices_changed_weights(llama: TorchEngine) -> None:
    """Finite, plausible and wrong: only the known answer tells."""
    llama.reference.model.model.norm.weight.mul_(1.5)

    with pytest.raises(CanaryFailed, match="a logit moved by"):
        llama.canary()


def test_logits_that_are_not_finite_are_an_error_everywhere(llama: TorchEngine) -> None:
    """NaN weights: scoring_failed for ``score`` and ``score_shared``, and the canary fails."""
    llama.reference.model.model.norm.weight.fill_(float("nan"))

    [single] = llama.score([llama.prepare(Work(False, "s", ("q",), (question("q"),)))])
    [shared] = llama.score([llama.prepare(shared_work(question("q")))])

    assert isinstance(single, ScoringFailed)
    assert [type(result) for result in scored(shared).results] == [ScoringFailed]
    with pytest.raises(CanaryFailed, match="scoring_failed"):
        llama.canary()


def test_health_is_the_model_and_its_device(engine: TorchEngine) -> None:
    """SemIf's metadata, the device and the memory at rest."""
    health = engine.health()

    assert health.model == engine.reference.info
    assert (health.device, health.memory_cap_bytes, health.tokens_max) == ("cpu", 0, TOKENS_MAX)
    assert health.memory_resting_bytes > 0


@given(st.lists(st.integers(1, 200), max_size=30), st.integers(1, 300), st.integers(1, 8))
def test_groups_keep_order_and_limits(tokens: list[int], tokens_max: int, rows_max: int) -> None:
    """Nothing lost, nothing moved, no group smaller than it must be.

    SemIf pads the rows of a call to the longest, so that is what the limit must hold for; a
    prompt over the limit is alone.
    """

    def fits(group: list[int]) -> bool:
        padded = len(group) * max(tokens[position] for position in group)
        return len(group) <= rows_max and padded <= tokens_max

    groups = group_rows(tokens, tokens_max=tokens_max, rows_max=rows_max)

    assert [position for group in groups for position in group] == list(range(len(tokens)))
    assert all(len(group) == 1 or fits(group) for group in groups)
    assert not any(fits([*group, after[0]]) for group, after in pairwise(groups))


@pytest.mark.parametrize("long_at", [0, 20, 40])
def test_one_long_question_does_not_pad_the_others_over_the_limit(
    tiny_llama: Path,
    proved: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    long_at: int,
) -> None:
    """What the model itself is given: rows times their padded length, prefix and all."""
    engine: TorchEngine = proved(tiny_llama)[0]
    sizes: list[int] = []
    real = engine.reference.model.forward

    def measured(**inputs: Any) -> Any:
        sizes.append(inputs["attention_mask"].numel())
        return real(**inputs)

    # SemIf looks for this parameter by name.
    measured.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
    monkeypatch.setattr(engine.reference.model, "forward", measured)
    small = replace(engine, batch_tokens_max=2048)
    questions = [question(f"q{n}") for n in range(41)]
    questions[long_at] = question("long", "word " * 380)

    [outcome] = small.score([small.prepare(shared_work(*questions))])

    assert len(results_of(outcome)) == 41
    assert max(sizes) <= 2048
