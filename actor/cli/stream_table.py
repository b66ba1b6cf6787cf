"""What ``stream plan`` and ``stream apply`` do and show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from actor.bus.client import NoAnswer, open_client
from actor.bus.objects.api import Ask, NoApi, asking_as_client
from actor.bus.objects.apply import apply, can_apply
from actor.bus.objects.look import Looked, look, look_at_requests
from actor.bus.objects.wanted import Wanted, wanted_objects
from actor.cli.show import complain, console
from actor.rules.rule import Rule
from actor.settings import Settings

__all__ = ["show_and_apply"]


async def show_and_apply(settings: Settings, rules: Sequence[Rule], *, replicas: int | None) -> int:
    """Apply with ``replicas``, else look only; gives the exit code."""
    wanted = wanted_objects(settings, rules)
    try:
        async with open_client(settings, "semif-actor stream") as client:
            ask = asking_as_client(client)
            if replicas is None:
                looked = await look(ask, wanted)
            else:
                looked = await apply(ask, wanted, replicas=replicas, tell=_tell)
            looked += await _requests(ask, wanted)
    except (NoAnswer, NoApi) as error:
        complain("stream", error)
        return 1
    if not looked:
        console.print("nothing is needed: neither jobs nor rules are on")
        return 0
    console.print(_table_of(looked))
    return int(any(each.differences for each in looked))


async def _requests(ask: Ask, wanted: Wanted) -> list[Looked]:
    try:
        return await look_at_requests(ask, wanted)
    except NoApi as error:
        if wanted.streams:  # without jobs and rules nobody needs JetStream
            complain("stream", f"whether a stream takes requests is not known: {error}")
        return []


def _tell(text: str) -> None:
    console.print(Text(text), soft_wrap=True)


def _table_of(looked: Iterable[Looked]) -> Table:
    table = Table("object", "for", "to do", "setting", "found", "wanted", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"  # a name cut short would be another name
    for each in looked:
        table.add_row(Text(each.what, style="bold"), Text(each.why), _to_do(each))
        for difference in each.differences:
            if difference.setting or difference.by_hand:
                told = (difference.by_hand, difference.setting, difference.found, difference.wanted)
                table.add_row("", "", *map(Text, told))
    return table


def _to_do(looked: Looked) -> Text:
    if not looked.differences:
        return Text("nothing", style="green")
    if can_apply(looked):
        return Text("make" if looked.there is None else "change", style="yellow")
    return Text("by hand", style="bold red")
