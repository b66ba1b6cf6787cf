"""Proofs of the fast path: text is never control (9), answers are SemIf's (8), the peak (10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from actor.engine.base import Prompt, Question
from actor.engine.encoding import row_of
from actor.engine.fast_scorer import FastScorer
from actor.engine.ledger import Note, Refuted
from actor.engine.memory import GIB, DeviceMemory
from actor.engine.plain_encoding import PlainEncoder
from actor.engine.prefix import merge_prone_states
from actor.engine.proofs.prompt import ORDINARY_STATE, TEMPLATE_PROBES
from actor.engine.proofs.scoring import EVIDENCE, QUESTION, words_to
from actor.engine.reference_scorer import ReferenceScorer
from schemas.decision import Option, State

__all__ = ["INSTEAD", "prove_equality", "prove_fast_peak", "prove_plain_text"]

TOGETHER_TOKENS_MAX = 600
"""Prompts below this length are also scored together, in one batch."""
INSTEAD = "SEMIF_SCORER=reference serves this model with SemIf's own functions, one by one."


def prove_plain_text(reference: ReferenceScorer, encoder: PlainEncoder, note: Note) -> None:
    """Prove INV-9: every text is text, and where it names no added token the ids are SemIf's."""
    states = [
        state
        for state in (*TEMPLATE_PROBES, *merge_prone_states())
        if len(str(state)) < encoder.tokens_max and not _names(encoder, state)
    ]
    for state in states:
        prompt = encoder.encode(state, QUESTION)
        ids, _, sha256 = reference.binding.encode_prompt(
            reference.tokenizer, row_of(state, QUESTION), 2**31
        )
        if list(prompt.ids) != ids or prompt.sha256 != sha256:
            raise Refuted(
                f"The tokens of the state {str(state)[:40]!r} are not those that SemIf gives. "
                f"{INSTEAD}"
            )
    template = _control_of(encoder, encoder.encode(ORDINARY_STATE, QUESTION))
    for text in encoder.control_tokens.values():
        held = f"before {text} after"
        option = Option(id="held", description=held)
        for state, question in (
            (held, QUESTION),
            ({held: [held]}, replace(QUESTION, question=held)),
            (text, replace(QUESTION, options=(option, *QUESTION.options))),
        ):
            if _control_of(encoder, encoder.encode(state, question)) != template:
                raise Refuted(f"{text!r} inside a text became a control token. {INSTEAD}")
    note.detail = (
        f"{len(encoder.control_tokens)} control tokens are plain text in a request; "
        f"{len(states)} states have SemIf's tokens, {len(encoder.head)} of them constant"
    )
    note.fact("control_tokens", sorted(encoder.control_tokens))


def _names(encoder: PlainEncoder, state: State) -> bool:
    return any(text in str(state) for text in encoder.control_tokens.values())


def _control_of(encoder: PlainEncoder, prompt: Prompt) -> list[int]:
    return [token for token in prompt.ids if token in encoder.control_tokens]


@dataclass(frozen=True, slots=True)
class _Case:
    """A decision and SemIf's logits of it."""

    prompt: Prompt
    logits: tuple[float, ...]


def prove_equality(
    reference: ReferenceScorer,
    scorer: FastScorer,
    encoder: PlainEncoder,
    *,
    tolerance: float,
    note: Note,
) -> None:
    """Prove INV-8: the logits are SemIf's within ``tolerance``.

    Alone, together and from the cache. Prompts short, around multiples of 64 tokens (where kernels
    and recurrent layers change their blocks), of about 1,000 tokens and near the limit; rows over
    one state against ``score_shared``.
    """
    cases = [_case(reference, encoder, state, QUESTION) for state in _states(encoder)]
    # Each long one once and a choice of the short ones twice: a start on a CPU must stay short.
    alone = [[case] for case in (*cases[1:5], *cases[-2:])]
    together = [case for case in cases if len(case.prompt.ids) < TOGETHER_TOKENS_MAX]
    shared = _shared_cases(reference, encoder)
    worst = 0.0
    for batch in (alone, [together + shared], [shared[::-1]]):
        for each in batch:
            found = scorer.score([case.prompt for case in each]).logits
            worst = max(worst, _worst(each, found, tolerance))
    longest = max(len(case.prompt.ids) for case in cases)
    note.detail = (
        f"{len(cases) + len(shared)} prompts of up to {longest} tokens, alone, together and from "
        f"the cache: logits within {worst:.3g} of SemIf's, tolerance {tolerance:g}; "
        f"attention {scorer.kernel_name}"
    )
    note.fact("tolerance", tolerance)
    note.fact("attention", scorer.kernel_name)


def _worst(cases: Sequence[_Case], found: Sequence[Sequence[float]], tolerance: float) -> float:
    """Give the largest difference; raises :class:`Refuted` over the tolerance."""
    worst = 0.0
    for case, logits in zip(cases, found, strict=True):
        mine = tuple(logits[: len(case.logits)])
        difference = max(abs(a - b) for a, b in zip(mine, case.logits, strict=True))
        lost = max(case.logits) - case.logits[mine.index(max(mine))]
        if not (difference <= tolerance and lost <= tolerance):  # a NaN is not within anything
            raise Refuted(
                f"A prompt of {len(case.prompt.ids)} tokens has logits that differ by "
                f"{difference:.3g} from SemIf's (tolerance {tolerance:g}), and a choice that "
                f"SemIf puts {lost:.3g} behind its own. {INSTEAD}"
            )
        worst = max(worst, difference)
    return worst


def _case(
    reference: ReferenceScorer, encoder: PlainEncoder, state: State, question: Question
) -> _Case:
    result = reference.score(row_of(state, question))
    return _Case(encoder.encode(state, question), result.option_logits)


def _shared_cases(reference: ReferenceScorer, encoder: PlainEncoder) -> list[_Case]:
    """Give rows over one state with SemIf's ``score_shared``: questions of several lengths."""
    questions = [
        replace(QUESTION, id=f"shared {number}", question="Is it so?" + " Really?" * number)
        for number in range(4)
    ]
    state = {**EVIDENCE, "more": " word" * 60}
    results, _ = reference.score_shared([row_of(state, question) for question in questions])
    return [
        _Case(encoder.encode(state, question), result.option_logits)
        for question, result in zip(questions, results, strict=True)
    ]


def _states(encoder: PlainEncoder) -> list[State]:
    """Give states whose prompts have the lengths that matter, to within a token or two."""
    base = len(encoder.encode("word", QUESTION).ids)
    first = -(-base // 64) * 64
    wanted = [first - 1, first, first + 1, first + 65, 1000]
    lengths = [length for length in wanted if base <= length < encoder.tokens_max]
    states: list[State] = [EVIDENCE, [["a"], {"b": 1.5}]]
    states += [_words(encoder, length) for length in lengths]
    # Not the limit itself: attention takes a CPU most of the start, and grows by the square.
    return [*states, _words(encoder, encoder.tokens_max * 15 // 16)]


def _words(encoder: PlainEncoder, tokens: int, question: Question = QUESTION) -> str:
    """Give a text whose prompt has ``tokens`` tokens, or a few fewer."""
    return "word" + " word" * words_to(encoder, tokens, question)


def prove_fast_peak(
    scorer: FastScorer,
    encoder: PlainEncoder,
    memory: DeviceMemory,
    *,
    batch_tokens_max: int,
    batch_rows_max: int,
    note: Note,
) -> None:
    """Run the largest batch that will be allowed, then record the resting footprint.

    As many rows as may be over a state as long as may be, with questions that use the tokens up.
    Every token is computed once, so this is the most that any batch computes. A full prefix cache
    must fit beside it. A CPU has no cap to hold, and the batch would take it longer than all other
    proofs: nothing is run there.
    """
    if not memory.cap_bytes:
        _settle(scorer, memory)
        note.detail = f"no cap on this device; {memory.resting_bytes / GIB:.2f} GiB at rest"
        return
    spare = (batch_tokens_max - encoder.tokens_max) // batch_rows_max
    question = replace(QUESTION, question="word" + " word" * max(spare - 60, 0))
    state = _words(encoder, encoder.tokens_max, question)
    prompts = [encoder.encode(state, question)] * batch_rows_max
    tail = len(prompts[0].ids) - prompts[0].state_tokens
    fitting = max(1, (batch_tokens_max - prompts[0].state_tokens) // tail)
    prompts = prompts[:fitting]
    scorer.cache.clear()
    before = scorer.tokens_computed
    scorer.score(prompts)
    peak_bytes = memory.reserved_bytes()
    _settle(scorer, memory)
    if peak_bytes + scorer.cache.bytes_max > memory.cap_bytes:
        raise Refuted(
            f"The largest batch takes {peak_bytes / GIB:.2f} GiB; a prefix cache of "
            f"{scorer.cache.bytes_max / GIB:.2f} GiB does not fit beside it under the cap. Lower "
            "SEMIF_PREFIX_CACHE_MIB or SEMIF_BATCH_TOKENS_MAX."
        )
    note.detail = (
        f"{len(prompts)} prompts of {len(prompts[0].ids)} tokens, "
        f"{scorer.tokens_computed - before} computed; "
        f"{peak_bytes / GIB:.2f} GiB held, {memory.resting_bytes / GIB:.2f} GiB at rest"
    )


def _settle(scorer: FastScorer, memory: DeviceMemory) -> None:
    """Take what is held now as the resting footprint; the cache comes on top of it."""
    scorer.cache.clear()
    memory.settle()
    memory.kept_bytes = lambda: scorer.cache.bytes
