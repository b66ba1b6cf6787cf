"""From one rule's tables to the rule, or to everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from actor.engine.base import Question
from actor.rules.pointer import Pointer, PointerError, parse_pointer
from actor.rules.rule import Asking, CoreSource, Picked, Rule, Sink, StreamSource
from actor.rules.subject import fault_of_filter, overlap, pattern_of_filter
from actor.rules.tables import QuestionTable, RuleTable, SinkTable, SourceTable
from actor.rules.template import Scope, TemplateError, compile_template
from schemas.decision import Decision
from schemas.errors import Invalid
from schemas.validation import check_decision

__all__ = ["Mistake", "RuleReader"]

Table = TypeVar("Table", bound=msgspec.Struct)

_NAME_PATTERN = "matching regex"
_THRESHOLDS = "min_probability or min_margin"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong in a rule file."""

    rule: str | None
    """The rule's name, or ``rules[N]`` if it has none that can be read."""
    field: str | None
    text: str

    def __str__(self) -> str:
        where = (f'rule "{self.rule}"' if self.rule else None, self.field, self.text)
        return ": ".join(part for part in where if part)


class RuleReader:
    """Reads one table of ``[[rules]]`` and keeps the mistakes it finds on the way."""

    def __init__(self, table: Mapping[str, Any], place: int, prefix: str, hops_max: int) -> None:
        name = table.get("name")
        self.name = name if isinstance(name, str) and name else f"rules[{place}]"
        self.mistakes: list[Mistake] = []
        self._table = table
        self._prefix = prefix
        self._hops_max = hops_max

    def mistake(self, field: str | None, text: str) -> None:
        """Note a mistake."""
        self.mistakes.append(Mistake(self.name, field, text))

    def read(self) -> Rule | None:
        """Give the rule; None when there are mistakes."""
        table = self._convert(self._table, RuleTable, "")
        if table is None:
            return None
        source = self._source(table.source, table.name)
        state = self._state(table)
        questions = [
            self._convert(each, QuestionTable, f"questions[{place}]")
            for place, each in enumerate(table.questions)
        ]
        sinks = [
            self._convert(each, SinkTable, f"sinks[{place}]")
            for place, each in enumerate(table.sinks)
        ]
        asked = [each for each in questions if each is not None]
        asking = self._asking(asked)
        # Templates speak of the source and the questions: without those they cannot be judged.
        if source is None or len(asked) < len(questions):
            return None
        scope = _scope(table, source, asking)
        made = [self._sink(sink, place, scope, asking) for place, sink in enumerate(sinks) if sink]
        if self.mistakes:
            return None
        return Rule(
            name=table.name,
            source=source,
            form=table.format,
            state=state,
            on_missing=table.on_missing or "dead",
            asking=asking,
            sinks=tuple(sink for sink in made if sink is not None),
            hops_max=self._hops_max,
        )

    def _convert(self, value: Mapping[str, Any], table: type[Table], at: str) -> Table | None:
        """Read one table. msgspec tells its first fault only: unknown keys are told here."""
        known = {key: each for key, each in value.items() if key in table.__struct_fields__}
        for key in sorted(value.keys() - known.keys()):
            self.mistake(f"{at}.{key}".lstrip("."), "is not a key")
        try:
            return msgspec.convert(known, table)
        except msgspec.ValidationError as error:
            text, _, path = str(error).partition(" - at `$")
            if _NAME_PATTERN in text:
                text = "takes letters, digits, - and _ only"
            self.mistake((at + path.removesuffix("`")).lstrip(".") or None, text)
            return None

    def _source(self, value: Mapping[str, Any], rule: str) -> CoreSource | StreamSource | None:
        table = self._convert(value, SourceTable, "source")
        if table is None:
            return None
        if fault := fault_of_filter(table.subject):
            self.mistake("source.subject", fault)
            return None
        if overlap(pattern_of_filter(table.subject), f"{self._prefix}.>"):
            self.mistake("source.subject", f"takes the actor's own subjects, {self._prefix}.>")
        default = f"semif-{rule}"
        if table.stream is None:
            if table.durable is not None:
                self.mistake("source.durable", "has no effect without stream")
            return CoreSource(table.subject, table.queue_group or default)
        if table.queue_group is not None:
            self.mistake("source.queue_group", "has no effect with stream; see durable")
        return StreamSource(table.subject, table.stream, table.durable or default)

    def _state(self, table: RuleTable) -> Pointer | tuple[Picked, ...] | None:
        state = table.state
        if state == "event":
            if table.on_missing is not None:
                self.mistake("on_missing", "has no effect without a pointer in state")
            return None
        if table.format == "text":
            self.mistake("state", 'of a text is "event": a text has no parts')
            return None
        if isinstance(state, str):
            if table.on_missing == "null":
                self.mistake("on_missing", "null alone is no state; it needs a table in state")
            if not state.startswith("/"):
                self.mistake("state", 'is "event", or a JSON Pointer, which begins with "/"')
                return None
            return self._pointer(state, "state")
        if not state or "" in state:
            self.mistake("state", "needs a name for each pointer, and at least one")
        picked = ((name, self._pointer(text, f"state.{name}")) for name, text in state.items())
        return tuple(Picked(name, pointer) for name, pointer in picked if pointer is not None)

    def _pointer(self, text: str, field: str) -> Pointer | None:
        try:
            return parse_pointer(text)
        except PointerError as error:
            self.mistake(field, str(error))
            return None

    def _asking(self, tables: Sequence[QuestionTable]) -> tuple[Asking, ...]:
        ids: set[str] = set()
        for place, table in enumerate(tables):
            at = f"questions[{place}]"
            # Ids end up in header names, which are read without regard to case.
            if table.id.lower() in ids:
                self.mistake(f"{at}.id", "another question of the rule has this id")
            ids.add(table.id.lower())
            decision = Decision(id=table.id, question=table.question, options=table.options)
            try:
                check_decision(decision, at=f"{at}.")
            except Invalid as error:
                self.mistake(error.field, str(error))
            if table.otherwise is not None and not _can_be_unsure(table):
                self.mistake(f"{at}.otherwise", f"has no effect without {_THRESHOLDS}")
        return tuple(
            Asking(
                Question(table.id, table.question, table.options),
                table.min_probability,
                table.min_margin,
                table.otherwise,
            )
            for table in tables
        )

    def _sink(
        self, table: SinkTable, place: int, scope: Scope, asking: Sequence[Asking]
    ) -> Sink | None:
        at = f"sinks[{place}]"
        if table.when != "always" and not any(map(_can_be_unsure, asking)):
            self.mistake(f"{at}.when", f"every decision is sure without {_THRESHOLDS}")
        try:
            template = compile_template(table.subject, scope)
        except TemplateError as error:
            self.mistake(f"{at}.subject", str(error))
            return None
        if overlap(template.pattern, f"{self._prefix}.>"):
            own = f"{self._prefix}.>"
            self.mistake(f"{at}.subject", f"may be one of the actor's own subjects, {own}")
        return Sink(template, table.mode, table.stream, table.when)


def _can_be_unsure(question: QuestionTable | Asking) -> bool:
    return question.min_probability > 0 or question.min_margin > 0


def _scope(table: RuleTable, source: CoreSource | StreamSource, asking: Sequence[Asking]) -> Scope:
    return Scope(
        rule=table.name,
        source=tuple(source.subject.split(".")),
        choices={each.question.id: each.routes for each in asking},
        has_fields=table.format == "json",
    )
