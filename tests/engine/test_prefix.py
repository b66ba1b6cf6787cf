"""INV-7: the shared prefix never covers a token that the full prompts do not share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from string import punctuation
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from semif_phase1 import direct, shared

from actor.engine.prefix import (
    common_length,
    full_prompt_row,
    install,
    merge_prone_states,
    upstream_of,
)

FAMILY = list(merge_prone_states())
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ENDINGS = st.text([*punctuation, *"\u201d\u3002\u200b\n \U0001f600"], min_size=1, max_size=6)
STATES = st.one_of(
    TEXTS.filter(bool),
    ENDINGS.map("ok ".__add__),
    ENDINGS.map(lambda text: {"said": [1, {"last": f"ok {text}"}]}),
    st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=3),
    st.lists(st.one_of(TEXTS, st.integers(), st.booleans(), st.none()), min_size=1, max_size=4),
)


@pytest.fixture(scope="module", params=["smollm2", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """Give two real tokenizers with different merges."""
    if request.param == "smollm2":
        return request.getfixturevalue("smollm_tokenizer")
    import transformers

    folder: Path = request.getfixturevalue("qwen3_tokenizer_dir")
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.fixture
def upstream() -> Iterator[ModuleType]:
    """Give semif_phase1.shared with its own function in place, and put back what was there."""
    present = shared._state_prefix
    shared._state_prefix = getattr(present, "__wrapped__", present)
    yield shared
    shared._state_prefix = present


def full_ids(tokenizer: Any, state: Any, question: str = "Which one?") -> list[int]:
    """Give the tokens of a full prompt, by SemIf's own encoder."""
    row = full_prompt_row(state) | {"question": question}
    ids: list[int] = direct.encode_prompt(tokenizer, row, 10**6)[0]
    return ids


def texts_of(value: Any) -> list[str]:
    """Give every string inside a state."""
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, dict) else value
    return [text for child in children if not isinstance(child, int) for text in texts_of(child)]


def test_the_family_holds_every_kind_of_ending() -> None:
    """Runs of one to three of each ASCII mark, or before a closer; quotes, emoji, CJK, control."""
    endings = {text.removeprefix("ok ") for state in FAMILY for text in texts_of(state)}

    assert {mark * run for mark in punctuation for run in (1, 2, 3)} <= endings
    bare = {state.removeprefix("ok ") for state in FAMILY if isinstance(state, str)}
    nested = {
        text.removeprefix("ok ")
        for state in FAMILY
        if not isinstance(state, str)
        for text in texts_of(state)
    }
    assert endings - {"Ann"} == bare == nested - {"Ann"}
    assert {mark + '"' for mark in punctuation} <= endings
    assert {"\u201d", "\u3002", "\U0001f600", "\u200b", "\x00", "\n"} <= endings
    kinds = {type(state) for state in FAMILY}
    assert kinds == {str, dict, list}
    deep = [s for s in FAMILY if isinstance(s, dict) and isinstance(next(iter(s.values())), dict)]
    assert len(deep) > 20


def test_semif_alone_refuses_at_least_twenty(tokenizer: Any, upstream: ModuleType) -> None:
    """The fault is real with each tokenizer, and score_shared's own check is what refuses."""
    refused = [
        state
        for state in FAMILY
        if full_ids(tokenizer, state)[: len(p := upstream._state_prefix(tokenizer, state))] != p
    ]

    assert len(refused) >= 20
    with pytest.raises(ValueError, match="state prefix does not match"):
        upstream.score_shared(None, tokenizer, [full_prompt_row(refused[0])], {}, 10**6)


def test_the_wrapper_never_covers_an_unshared_token(tokenizer: Any, upstream: ModuleType) -> None:
    """For the whole family, and for questions that begin and end in every way."""
    wrapper = install(upstream)

    for state in FAMILY:
        prefix = wrapper(tokenizer, state)
        for question in ("Why?", '"', "  spaced", "\n", ")))"):
            ids = full_ids(tokenizer, state, question)
            assert ids[: len(prefix)] == prefix
            assert 0 < len(prefix) < len(ids)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(state=STATES, question=st.one_of(TEXTS.filter(bool), ENDINGS))
def test_the_wrapper_holds_for_any_state_and_question(
    tokenizer: Any, upstream: ModuleType, state: Any, question: str
) -> None:
    """Whatever text comes, the prefix is one of the full prompt, and no longer than upstream's."""
    wrapper = install(upstream)

    prefix = wrapper(tokenizer, state)

    assert full_ids(tokenizer, state, question)[: len(prefix)] == prefix
    assert upstream_of(wrapper)(tokenizer, state)[: len(prefix)] == prefix


@pytest.mark.parametrize(
    "state", ["The parcel arrived on Tuesday", {"a": "word", "n": 12}, ["one", "two words"]]
)
def test_ordinary_states_keep_their_whole_prefix(
    tokenizer: Any, upstream: ModuleType, state: Any
) -> None:
    """Where upstream is right, nothing is lost."""
    own = upstream._state_prefix(tokenizer, state)

    assert install(upstream)(tokenizer, state) == own


def test_there_is_one_wrapper_however_often_it_is_installed(upstream: ModuleType) -> None:
    """A second load finds the first one's wrapper, which remembers what it wraps."""
    own = upstream._state_prefix

    first = install(upstream)
    second = install(upstream)

    assert first is second is upstream._state_prefix
    assert upstream_of(first) is own
    assert upstream.score_shared.__globals__["_state_prefix"] is first


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_length_is_the_longest_common_prefix(left: list[int], right: list[int]) -> None:
    """Up to it the lists are equal; one further they differ, or one has ended."""
    length = common_length(left, right)

    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]
