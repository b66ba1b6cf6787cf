"""The demo's events: a handful of mails, routed by a rule file, and nobody asked a question."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.table import Table
from rich.text import Text

from actor.bus.client import BusClient
from actor.bus.objects.api import asking_as_client
from actor.bus.objects.apply import apply
from actor.bus.objects.wanted import wanted_objects
from actor.rules.rulefile import load
from actor.settings import Settings
from schemas.subjects import CHOICE_HEADER, DEAD_CODE_HEADER, PROBABILITY_HEADER, Subjects

__all__ = ["EVENTS", "RULES", "make_objects", "route_events", "table_of"]

RULES = Path(__file__).with_name("demo_rules.toml")
READ = "mail.new"
WRITTEN = "mail.sorted.>"
WITHIN_S = 60.0
BROKEN = "(cut short)"
"""Its way ends in a dead letter."""

EVENTS = {
    "Where is it?": b'{"text": "Where is the station, please?"}',
    "Wo ist er?": '{"text": "Wo ist der nächste Bahnhof, bitte?"}'.encode(),
    "Où est-elle ?": '{"text": "Où est la gare, s\'il vous plaît ?"}'.encode(),
    "¿Dónde está?": '{"text": "¿Dónde está la estación, por favor?"}'.encode(),
    BROKEN: b'{"text": "Where is',
}
"""By what the table calls them."""


async def make_objects(client: BusClient, settings: Settings) -> None:
    """Make what the rules need of JetStream, as ``semif-actor stream apply`` does."""
    wanted = wanted_objects(
        msgspec.structs.replace(settings, rules=RULES), load(RULES, prefix=settings.subject_prefix)
    )
    await apply(asking_as_client(client), wanted, replicas=1, tell=lambda _text: None)


async def route_events(client: BusClient) -> Table:
    """Publish the events, and give a table of where they went."""
    routed = await client.subscribe(WRITTEN)
    dead = await client.subscribe(Subjects().dead("rules.>"))
    rows = {}
    for name, event in EVENTS.items():
        await client.publish(READ, event, None)
        source = dead if name == BROKEN else routed
        message = await client.next_of(source, within_s=WITHIN_S)
        rows[name] = (message.subject, message.headers or {})
    return table_of(rows)


def table_of(rows: Mapping[str, tuple[str, Mapping[str, str]]]) -> Table:
    """Show where each event was published, and what the headers say of its decision."""
    table = Table("event on mail.new", "published on", "choice", "p")
    for name, (subject, headers) in rows.items():
        share = headers.get(PROBABILITY_HEADER)
        choice = headers.get(CHOICE_HEADER) or headers.get(DEAD_CODE_HEADER, "")
        table.add_row(
            Text(name),
            Text(subject),
            Text(choice, style="bold" if share else "yellow"),
            f"{float(share):.0%}" if share else "",
        )
    return table
