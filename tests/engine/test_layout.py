"""Where the tokens of a batch lie: every row whole, every token once, no pass over its limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actor.engine.base import Prompt
from actor.engine.layout import group_prompts, plans_of

HEAD = (1, 2, 3)


def prompt(state: tuple[int, ...], tail: tuple[int, ...]) -> Prompt:
    """Give a prompt behind the head."""
    return Prompt((*HEAD, *state, *tail), len(HEAD) + len(state), "")


TOKENS = st.lists(st.integers(4, 9), max_size=6).map(tuple)
TAILS = st.lists(st.integers(4, 9), min_size=1, max_size=6).map(tuple)
PROMPTS = st.lists(st.builds(prompt, TOKENS, TAILS), max_size=20)


@given(PROMPTS, st.integers(0, 8))
def test_every_prompt_is_head_state_and_tail(prompts: list[Prompt], state_min: int) -> None:
    """Put together again, the parts are the prompts; rows of a group have equal states."""
    groups = group_prompts(prompts, head=HEAD, state_tokens_min=state_min)

    whole = {
        row: (*HEAD, *group.state, *tail)
        for group in groups
        for row, tail in zip(group.rows, group.tails, strict=True)
    }
    assert whole == {row: each.ids for row, each in enumerate(prompts)}
    assert all(tail for group in groups for tail in group.tails)


def test_a_short_state_of_one_row_has_no_part_of_its_own() -> None:
    """Two rows share five tokens; a third row has a state of five by itself, a fourth of six."""
    rows = [
        prompt((4,) * 5, (5,)),
        prompt((4,) * 5, (6,)),
        prompt((5,) * 5, (6,)),
        prompt((6,) * 6, (6,)),
    ]

    groups = group_prompts(rows, head=HEAD, state_tokens_min=6)

    assert [(len(group.state), group.rows) for group in groups] == [
        (5, (0, 1)),
        (0, (2,)),
        (6, (3,)),
    ]


def test_states_that_differ_in_one_token_are_kept_apart() -> None:
    """Nothing but equal ids is shared, however long the equal part before."""
    rows = [prompt((*(4,) * 50, 5), (6,)), prompt((*(4,) * 50, 6), (6,))]

    groups = group_prompts(rows, head=HEAD, state_tokens_min=1)

    assert [group.rows for group in groups] == [(0,), (1,)]
    assert groups[0].key != groups[1].key


@given(PROMPTS, st.integers(1, 30), st.integers(1, 6), st.booleans())
def test_passes_hold_their_limits_and_lose_nothing(
    prompts: list[Prompt], tokens_max: int, rows_max: int, remembered: bool
) -> None:
    """Each row in one pass; one over the token limit goes alone; what is new is counted."""
    groups = group_prompts(prompts, head=HEAD, state_tokens_min=2)
    seen: set[bytes] = set()
    rows: list[int] = []

    for plan in plans_of(groups, known=seen.__contains__, tokens_max=tokens_max, rows_max=rows_max):
        fresh = sum(len(group.state) for group in plan.groups if group.key not in seen)
        tails = sum(len(tail) for group in plan.groups for tail in group.tails)
        in_pass = [row for group in plan.groups for row in group.rows]
        assert plan.tokens == fresh + tails
        assert len(in_pass) <= rows_max
        assert plan.tokens <= tokens_max or len(in_pass) == 1
        rows += in_pass
        if remembered:
            seen |= {group.key for group in plan.groups}

    assert sorted(rows) == list(range(len(prompts)))


def test_a_group_that_is_cut_computes_its_state_once_when_it_is_remembered() -> None:
    """Four rows over ten tokens, room for two: 12 tokens, then 2 with the state known, or 12."""
    rows = [prompt((4,) * 10, (tail,)) for tail in (5, 6, 7, 8)]
    groups = group_prompts(rows, head=HEAD, state_tokens_min=2)
    seen: set[bytes] = set()

    tokens = []
    for plan in plans_of(groups, known=seen.__contains__, tokens_max=100, rows_max=2):
        tokens.append(plan.tokens)
        seen.add(groups[0].key)
    forgetful = [
        plan.tokens for plan in plans_of(groups, known=lambda _: False, tokens_max=100, rows_max=2)
    ]

    assert (tokens, forgetful) == ([12, 2], [12, 12])
