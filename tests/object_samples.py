"""JetStream objects as an actor wants them, written down as the server's API takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from rule_samples import TOPIC, rule_text

from actor.rules.rule import Rule
from actor.rules.rulefile import parse
from actor.settings import Settings

SECOND = 1_000_000_000
OUT = """
[[rules.sinks]]
subject = "out.{choice}.{event:/a.b}"
stream = "OUT"
"""
RULES_TEXT = rule_text(
    name="sort", source='{ subject = "orders.*", stream = "ORDERS" }', questions=TOPIC, sinks=OUT
)
RULES: tuple[Rule, ...] = parse(RULES_TEXT, "rules.toml", prefix="semif.v1")

STREAMS: dict[str, dict[str, Any]] = {
    "SEMIF_JOBS": {"subjects": ["semif.v1.jobs.>"], "retention": "workqueue"},
    "SEMIF_RESULTS": {"subjects": ["semif.v1.results.>"]},
    "SEMIF_DEAD": {"subjects": ["semif.v1.dead.>"]},
    "ORDERS": {"subjects": ["orders.>"]},
    "OUT": {"subjects": ["out.billing.*", "out.other.>"]},
}
CONSUMERS: dict[str, dict[str, Any]] = {
    "SEMIF_JOBS.semif": {"filter_subject": "semif.v1.jobs.>"},
    "ORDERS.semif-sort": {"filter_subject": "orders.*"},
}


def settings_of(url: str, folder: Path) -> Settings:
    """Give the settings of an actor that takes jobs and carries out a rule."""
    rules = folder / "rules.toml"
    rules.write_text(RULES_TEXT, encoding="utf-8")
    return Settings(nats_url=url, jobs=True, rules=rules, instance="me", heartbeat_s=0.1)


async def api(client: Client, endpoint: str, body: Any = None) -> dict[str, Any]:
    """Ask JetStream's API; no error may come back."""
    payload = b"" if body is None else json.dumps(body).encode()
    reply = await client.request(f"$JS.API.{endpoint}", payload, timeout=5)
    answer: dict[str, Any] = json.loads(reply.data)
    assert "error" not in answer, (endpoint, answer)
    return answer


async def make_stream(client: Client, name: str, config: dict[str, Any]) -> None:
    """Make a stream; ``sealed`` follows, for no stream is born sealed."""
    made = {key: value for key, value in config.items() if key != "sealed"} | {"name": name}
    answer = await api(client, f"STREAM.CREATE.{name}", made)
    if "sealed" in config:
        await api(client, f"STREAM.UPDATE.{name}", answer["config"] | {"sealed": True})


async def make_consumer(client: Client, path: str, config: dict[str, Any]) -> None:
    """Make a durable consumer, ``STREAM.DURABLE``."""
    stream, durable = path.split(".")
    made = {"durable_name": durable, "ack_policy": "explicit", **config}
    body = {"stream_name": stream, "config": made}
    await api(client, f"CONSUMER.DURABLE.CREATE.{path}", body)


async def make_all(client: Client, changes: dict[str, dict[str, Any] | None] | None = None) -> None:
    """Make all objects; ``changes`` are laid over an object's settings, None leaves it out."""
    for name, base in {**STREAMS, **CONSUMERS}.items():
        change = (changes or {}).get(name, {})
        if change is None:
            continue
        config = {key: value for key, value in {**base, **change}.items() if value is not None}
        await (make_consumer if "." in name else make_stream)(client, name, config)
    for name, change in (changes or {}).items():
        if name not in {*STREAMS, *CONSUMERS} and change is not None:
            await (make_consumer if "." in name else make_stream)(client, name, change)


async def remove_all(client: Client) -> None:
    """Remove all streams, and their consumers with them."""
    for name in (await api(client, "STREAM.NAMES"))["streams"] or ():
        await api(client, f"STREAM.DELETE.{name}")


async def everything(client: Client) -> list[Any]:
    """Give the configuration of all that is there."""
    streams = (await api(client, "STREAM.LIST"))["streams"]
    consumers = [
        each["config"]
        for stream in streams
        for each in (await api(client, f"CONSUMER.LIST.{stream['config']['name']}"))["consumers"]
    ]
    return [*(stream["config"] for stream in streams), *consumers]
