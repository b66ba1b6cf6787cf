"""The one table of outcomes."""

from __future__ import annotations

import re
from pathlib import Path

from actor.rules import outcomes
from actor.rules.outcomes import OUTCOMES, Outcome
from actor.rules.rulefile import RuleFile
from actor.rules.tables import QuestionTable, RuleTable, SinkTable, SourceTable

REFERENCE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")


def test_every_outcome_is_in_the_table_once() -> None:
    """Counters are made from the table: what it lacks would not be counted."""
    constants = [each for each in vars(outcomes).values() if isinstance(each, Outcome)]

    assert sorted(each.code for each in constants) == sorted(each.code for each in OUTCOMES)
    assert len({each.code for each in OUTCOMES}) == len(OUTCOMES)


def test_codes_can_be_labels_and_headers() -> None:
    """Lower case and underscores."""
    assert all(re.fullmatch("[a-z_]+", each.code) for each in OUTCOMES)


def test_the_reference_lists_every_outcome() -> None:
    """Code and action, as the table has them and in its order."""
    row = re.compile(r"^\| `(\w+)` \| (publish|skip|dead|retry) \|", re.MULTILINE)

    assert row.findall(REFERENCE) == [(each.code, each.action) for each in OUTCOMES]


def test_the_reference_lists_every_key() -> None:
    """What a rule file may say is what the page says."""
    for table in (RuleFile, RuleTable, SourceTable, QuestionTable, SinkTable):
        for key in table.__struct_fields__:
            assert f"| `{key}` |" in REFERENCE, key
