"""Answers over the bus against SemIf called in this process on the same weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from actors import Served, ask, decision, serving
from nats.aio.client import Client
from reference import TOKENS_MAX, SemIf, mixed_decisions, with_safe_prefix

EQUAL = ("option_logits", "probabilities", "prompt_sha256", "input_tokens", "option_ids", "id")


@pytest.fixture(scope="module")
def served(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Give an actor on the demo model."""
    folder = tmp_path_factory.mktemp("answers")
    settings = {
        "SEMIF_MAX_TOKENS": str(TOKENS_MAX),
        "SEMIF_BATCH_TOKENS_MAX": "8192",  # a request cut into groups is rounded otherwise
        "SEMIF_TIMEOUT_MS_DEFAULT": "600000",  # all 200 wait at once, on a machine of any speed
    }
    with serving(demo_model, folder, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def semif(demo_model: Path) -> SemIf:
    """Give SemIf on the demo model."""
    return SemIf(demo_model)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Client]:
    """Give a connection to the server of ``served``."""
    connection = await nats.connect(served.url)
    yield connection
    await connection.close()


async def answered(client: Client, request: Any, *, shared: bool = False) -> dict[str, Any]:
    """Ask, and give the reply's body."""
    body: dict[str, Any] = json.loads(
        (await ask(client, request, shared=shared, timeout_s=300)).data
    )
    return body


def as_shared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Give rows over one state as a shared request."""
    decisions = [{key: row[key] for key in ("id", "question", "options")} for row in rows]
    return {"state": rows[0]["state"], "decisions": decisions}


@pytest.mark.timeout(900)
async def test_score_equals_semif_for_200_mixed_decisions(client: Client, semif: SemIf) -> None:
    """Logits, probabilities, prompt hash and token count are SemIf's, to the last bit."""
    rows = mixed_decisions(200)

    replies, expected = await asyncio.gather(
        asyncio.gather(*(answered(client, row) for row in rows)),
        asyncio.to_thread(lambda: [semif.score(row) for row in rows]),
    )

    for reply, result in zip(replies, expected, strict=True):
        assert {key: reply[key] for key in EQUAL} == {key: result[key] for key in EQUAL}
        best = max(result["probabilities"])
        assert reply["choice"] == result["option_ids"][result["probabilities"].index(best)]
        assert set(result) - set(reply) == set()


@pytest.mark.timeout(900)
async def test_score_shared_equals_semif_for_200_mixed_decisions(
    client: Client, semif: SemIf
) -> None:
    """The same for 25 states with 8 decisions each."""
    rows = mixed_decisions(200)
    groups = [rows[start : start + 8] for start in range(0, 200, 8)]

    groups = [[row | {"state": group[0]["state"]} for row in group] for group in groups]

    # The wrapper changes what SemIf refuses, so that it is refused no more; nothing else.
    replies, expected = await asyncio.gather(
        asyncio.gather(*(answered(client, as_shared(group), shared=True) for group in groups)),
        asyncio.to_thread(lambda: [with_safe_prefix(semif, group) for group in groups]),
    )

    for reply_body, results in zip(replies, expected, strict=True):
        for reply, result in zip(reply_body["results"], results, strict=True):
            assert {key: reply[key] for key in EQUAL} == {key: result[key] for key in EQUAL}
            assert set(result) - set(reply) == set()


async def test_concurrent_callers_get_their_own_answers(client: Client, semif: SemIf) -> None:
    """Answers asked all at once are the ones asked one by one."""
    rows = mixed_decisions(24)

    replies = await asyncio.gather(*(ask(client, row) for row in rows))

    for reply, row in zip(replies, rows, strict=True):
        assert json.loads(reply.data)["option_logits"] == semif.score(row)["option_logits"]


async def test_numbers_reach_the_prompt_as_semif_writes_them(client: Client, semif: SemIf) -> None:
    """Integers of any length and floats of any form give the prompt that json.loads gives."""
    numbers = "[18446744073709551616, -9223372036854775809, 1e22, 1.0, -0.0, 0.1, 1E5, 5e-324]"
    body = json.dumps(decision("here")).replace('"here"', numbers)

    reply = json.loads((await ask(client, body.encode())).data)

    row = json.loads(body) | {"id": "decision"}
    assert reply["prompt_sha256"] == semif.score(row)["prompt_sha256"]


async def test_a_prompt_exactly_at_the_limit_is_answered_and_one_more_is_not(
    client: Client, semif: SemIf
) -> None:
    """The limit is the longest prompt allowed, and a refusal says both numbers."""
    from semif_phase1 import direct

    def tokens(words: int) -> int:
        row = decision("word " * words) | {"id": "decision"}
        return len(direct.encode_prompt(semif.tokenizer, row, 10**6)[0])

    words = TOKENS_MAX - tokens(0 + 1) + 1
    while tokens(words) > TOKENS_MAX:
        words -= 1
    assert tokens(words) == TOKENS_MAX

    at_limit = json.loads((await ask(client, decision("word " * words))).data)
    above = json.loads((await ask(client, decision("word " * (words + 1)))).data)

    assert at_limit["input_tokens"] == TOKENS_MAX
    assert above["error"]["message"].count(str(TOKENS_MAX)) == 1
    assert str(TOKENS_MAX + 1) in above["error"]["message"]


@pytest.mark.parametrize("family", ["tiny_qwen3", "tiny_qwen35"])
async def test_other_model_families_answer_as_semif_does(
    family: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Qwen3 and Qwen3.5 (with linear attention) over the bus equal SemIf in process."""
    from actors import run_actor

    from actor.bus.embedded import embedded_server

    model: Path = request.getfixturevalue(family)
    semif = SemIf(model)
    folder = tmp_path_factory.mktemp(family)
    rows = mixed_decisions(12)
    with embedded_server(folder) as server:
        async with run_actor(server, model, folder) as actor:
            await actor.until("ready")
            for row in rows:
                reply = json.loads((await ask(actor.client, row)).data)
                assert reply["option_logits"] == semif.score(row)["option_logits"]
            shared_rows = [row | {"state": rows[1]["state"]} for row in rows]
            request_body = {
                "state": rows[1]["state"],
                "decisions": [{k: r[k] for k in ("id", "question", "options")} for r in rows],
            }
            results = json.loads((await ask(actor.client, request_body, shared=True)).data)
            expected = with_safe_prefix(semif, shared_rows)
    for reply, result in zip(results["results"], expected, strict=True):
        assert reply["option_logits"] == result["option_logits"]
