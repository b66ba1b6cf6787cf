"""Proofs about the tokenizer and its chat template: 4, 5, 7 and 9 of the design."""

from __future__ import annotations

import json
from typing import Any

from actor.engine.base import Question
from actor.engine.binding import Binding
from actor.engine.encoding import PromptEncoder
from actor.engine.ledger import Note, Refuted
from actor.engine.prefix import (
    full_prompt_row,
    is_installed,
    merge_prone_states,
    upstream_of,
)
from actor.engine.reference_scorer import ReferenceScorer
from schemas.decision import OPTIONS_MAX, Option, State
from schemas.errors import ControlText

__all__ = [
    "ORDINARY_STATE",
    "TEMPLATE_PROBES",
    "prove_answer_slots",
    "prove_control_text",
    "prove_state_prefix",
    "prove_template",
]

ORDINARY_STATE: State = {"message": "The parcel arrived on Tuesday and the box was open"}

TEMPLATE_PROBES: tuple[State, ...] = (
    "  leading and trailing  ",
    "\n\tline\n\n\n\nbreaks\t\n",
    "{{ messages }} {% raise %} {# gone #} ${x} %s \\n",
    "\"quotes\" 'and' `more` <b>&amp;</b>",
    "\U0001f600 \u2764\ufe0f \u4f60\u597d \u0645\u0631\u062d\u0628\u0627 e\u0301 \u200b",
    {"role": "system", "content": " nested ", "list": [" a ", {"b": "  "}, None, True, 1.5]},
    "word " * 2000,
)
"""States that a template which trims, formats, escapes or cuts its content would change."""


def prove_answer_slots(binding: Binding, tokenizer: Any, note: Note) -> tuple[int, ...]:
    """Prove that the 16 letters are one round-trip token each, distinct and stable in place.

    Gives their token ids.

    SemIf's own ``encode_prompt`` checks all of it for the letters of one row, against the
    template's tail; the tail is constant, so one row stands for all.
    """
    letters = tuple(f"option {number}" for number in range(OPTIONS_MAX))
    row = full_prompt_row("probe") | {"options": [{"id": x, "description": x} for x in letters]}
    try:
        _, slots, _ = binding.encode_prompt(tokenizer, row, 2**31)
    except ValueError as error:
        raise Refuted(
            f"{error}. The model's tokenizer cannot answer with letters; SemIf needs another model."
        ) from None
    if len(set(slots)) != OPTIONS_MAX:
        raise Refuted(f"{OPTIONS_MAX} letters gave {len(set(slots))} distinct tokens.")
    note.detail = f"{OPTIONS_MAX} letters, one token each"
    note.fact("answer_slots", slots)
    return tuple(slots)


def prove_template(binding: Binding, tokenizer: Any, note: Note) -> None:
    """Prove that the chat template carries system text and payload once each and unmodified.

    The payloads are SemIf's: JSON objects around states that are easy to damage. A template that
    strips white space around its content passes, since a JSON object has none (Qwen3.5's own
    template does so); one that touches a character of the payload does not.
    """
    if not tokenizer.chat_template:
        raise Refuted("The tokenizer has no chat template. SemIf needs an instruction-tuned model.")
    for state in TEMPLATE_PROBES:
        messages = binding.direct_messages(full_prompt_row(state))
        prompt = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        for message in messages:
            count = prompt.count(message["content"])
            if count != 1:
                raise Refuted(
                    f"The chat template shows the {message['role']} text {count} times instead of "
                    f"once, unmodified (probe: a state of type {type(state).__name__}, "
                    f"{len(str(state))} characters). SemIf cannot use this template."
                )
    note.detail = f"{len(TEMPLATE_PROBES)} payloads, each exactly once and unmodified"
    note.fact("chat_template", tokenizer.chat_template)


def prove_state_prefix(scorer: ReferenceScorer, note: Note) -> None:
    """Prove INV-7 through ``score_shared`` itself, with a state that SemIf alone refuses.

    The family is searched anew for each tokenizer: other merges, other states.
    """
    binding, tokenizer = scorer.binding, scorer.tokenizer
    wrapper = binding.shared.score_shared.__globals__["_state_prefix"]
    if not is_installed(wrapper):
        raise Refuted("score_shared would not call the state-prefix wrapper.")
    upstream = upstream_of(wrapper)
    if wrapper(tokenizer, ORDINARY_STATE) != upstream(tokenizer, ORDINARY_STATE):
        raise Refuted("The wrapper shortens the prefix of an ordinary state: reuse would be lost.")
    counterexample: State | None = None
    searched = 0
    for state in merge_prone_states():
        searched += 1
        full, _, _ = binding.encode_prompt(tokenizer, full_prompt_row(state), 2**31)
        prefix = wrapper(tokenizer, state)
        if not prefix or full[: len(prefix)] != prefix or len(full) <= len(prefix):
            raise Refuted(f"The wrapper's prefix of {state!r} covers a token that is not shared.")
        upstream_prefix = upstream(tokenizer, state)
        if counterexample is None and full[: len(upstream_prefix)] != upstream_prefix:
            counterexample = state
    scored = ORDINARY_STATE if counterexample is None else counterexample
    [result], prefix_tokens = scorer.score_shared([full_prompt_row(scored)])
    if counterexample is None:
        _prove_called(scorer, wrapper, prefix_tokens)
        note.detail = f"no state of {searched} is refused by SemIf alone; the wrapper is called"
    else:
        note.detail = (
            f"{searched} states; SemIf alone refuses {counterexample!r}, here it has "
            f"{len(result.option_logits)} logits over {prefix_tokens} shared tokens"
        )
    note.fact("state_prefix", repr(counterexample))


def _prove_called(scorer: ReferenceScorer, wrapper: Any, prefix_tokens: int) -> None:
    """Without a counterexample, prove at least that the prefix came from the wrapper."""
    expected = len(wrapper(scorer.tokenizer, ORDINARY_STATE))
    if prefix_tokens != expected:
        raise Refuted(
            f"score_shared used a prefix of {prefix_tokens} tokens; the wrapper gives {expected}."
        )


def prove_control_text(encoder: PromptEncoder, note: Note) -> None:
    """Prove INV-9 as the reference scorer keeps it: no text becomes a control token.

    SemIf encodes template and text as one, so a control token in a text would be obeyed. Each
    added token must be refused in a state, a question and a description; ordinary text must not.
    A token that JSON escapes (a line break of Gemma's) may also be accepted: its escaped text is
    what the prompt then holds, and :meth:`PromptEncoder.encode` found no control token in it.
    """
    options = (Option(id="yes", description="Yes"), Option(id="no", description="No"))
    plain = Question("probe", "Is it so?", options)
    encoder.encode(ORDINARY_STATE, plain)
    for text in encoder.control_tokens.values():
        held = f"before {text} after"
        bad_option = Option(id="yes", description=held)
        for state, question in (
            (held, plain),
            ({"deep": [held]}, plain),
            ("state", Question("probe", held, options)),
            ("state", Question("probe", "Is it so?", (bad_option, options[1]))),
        ):
            try:
                encoder.encode(state, question)
            except ControlText:
                continue
            if json.dumps(text, ensure_ascii=False) != f'"{text}"':
                continue
            raise Refuted(f"The control token {text!r} inside a text was not noticed.")
    note.detail = f"{len(encoder.control_tokens)} control tokens, each refused as text"
    note.fact("control_tokens", sorted(encoder.control_tokens))
