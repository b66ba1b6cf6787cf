"""What a decision must be, beyond having the right fields.

SemIf's own rules (``semif_phase1.core.validate_row``), said with the field at fault, and two more:
descriptions that are blank or equal cannot be told apart by the model, so an answer would be noise.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.decision import OPTIONS_MAX, OPTIONS_MIN, Decision, Option, State
from schemas.errors import Invalid

__all__ = ["ID_CHARS_MAX", "check_decision", "check_ids", "check_state"]

ID_CHARS_MAX = 256
"""Ids come back in every reply, so they are bounded."""


def check_state(state: State) -> None:
    """Refuse an empty state."""
    if not state:
        raise Invalid("The state must not be empty.", field="state")


def check_ids(ids: Sequence[str]) -> None:
    """Refuse decision ids that are equal, empty or too long."""
    seen: set[str] = set()
    for index, name in enumerate(ids):
        _check_id(name, field=f"decisions[{index}].id")
        if name in seen:
            raise Invalid("Decision ids must be unique.", field=f"decisions[{index}].id")
        seen.add(name)


def check_decision(decision: Decision, *, at: str = "") -> None:
    """Refuse a decision that cannot be asked; ``at`` is its path in the request, dot included."""
    if decision.id is not None:
        _check_id(decision.id, field=f"{at}id")
    if not decision.question.strip():
        raise Invalid("The question must not be blank.", field=f"{at}question")
    options = decision.options
    if not OPTIONS_MIN <= len(options) <= OPTIONS_MAX:
        raise Invalid(
            f"A decision has {OPTIONS_MIN} to {OPTIONS_MAX} options; this one has {len(options)}.",
            field=f"{at}options",
        )
    _check_distinct(options, at=at)


def _check_id(name: str, *, field: str) -> None:
    if not name or len(name) > ID_CHARS_MAX:
        raise Invalid(f"An id has 1 to {ID_CHARS_MAX} characters.", field=field)


def _check_distinct(options: tuple[Option, ...], *, at: str) -> None:
    ids: set[str] = set()
    descriptions: set[str] = set()
    for index, option in enumerate(options):
        path = f"{at}options[{index}]"
        _check_id(option.id, field=f"{path}.id")
        description = option.description.strip()
        if not description:
            raise Invalid("A description must not be blank.", field=f"{path}.description")
        if option.id in ids:
            raise Invalid("Option ids must be unique in a decision.", field=f"{path}.id")
        if description in descriptions:
            raise Invalid("Descriptions must differ.", field=f"{path}.description")
        ids.add(option.id)
        descriptions.add(description)
