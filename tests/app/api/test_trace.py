"""``speculative.trace`` reports every token's source and every step's tree, the same whole and streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient

from app.api import choice
from app.inputs.tokenizers import load_tokenizer
from tests.app.api.engine_backend import over_engine
from tests.app.conftest import chunks_of

PROMPT = "the quick brown fox jumps over the lazy dog and the quick brown fox sleeps. the quick"
METHOD = "pld+suffix+token-recycling"
TRACED = {"speculative": {"method": METHOD, "trace": True}, "return_token_ids": True}
TEXT = {"model": "tiny", "prompt": PROMPT, "temperature": 0.8, "seed": 4, "max_tokens": 40, "ignore_eos": True}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "seed": 4, "max_tokens": 40}
PATH = "/v1/completions"
BODIES = pytest.mark.parametrize(("path", "body"), [(PATH, TEXT), ("/v1/chat/completions", CHAT)], ids=["text", "chat"])


@pytest.fixture
async def real(tiny_checkpoint: Path) -> AsyncIterator[AsyncClient]:
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        yield client


async def whole(client: AsyncClient, path: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = await client.post(path, json=body | fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def streamed(client: AsyncClient, path: str, body: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return chunks_of(await client.post(path, json=body | fields | {"stream": True}))


def steps_of(*answers: dict[str, Any]) -> list[dict[str, Any]]:
    """The traces of a response, or of all chunks of a stream."""
    metrics = [answer.get("metrics", {}).get("speculative_decoding", {}) for answer in answers]
    return [step for figures in metrics for step in figures.get("trace", ())]


def token_ids(steps: list[dict[str, Any]]) -> list[int]:
    return [token["token_id"] for step in steps for token in step["tokens"]]


def check_step(step: dict[str, Any]) -> Counter[str]:
    """Check a step's tree; returns the sources of its accepted nodes."""
    accepted: Counter[str] = Counter()
    above, nodes = -1, step["nodes"]
    for token in step["tokens"]:
        if token["node"] is None:
            assert token is step["tokens"][-1]
            continue
        node = nodes[token["node"]]
        assert (node["parent"], node["accepted"], node["probe"]) == (above, True, False)
        assert (node["token_id"], node["text"]) == (token["token_id"], token["text"])
        accepted[node["sources"][0]] += 1
        above = token["node"]
    for i, node in enumerate(nodes):
        assert node["parent"] < i
        assert node["depth"] == (1 if node["parent"] == -1 else nodes[node["parent"]]["depth"] + 1)
        assert 0 < node["probability"] <= 1
    return accepted


@BODIES
async def test_a_trace_accounts_for_all_tokens_and_nodes(real: AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await whole(real, path, body, **TRACED, cache_salt="a")
    plain = await whole(real, path, body, speculative={"method": METHOD}, return_token_ids=True)
    [choice], figures = answer["choices"], answer["metrics"]["speculative_decoding"]
    assert "trace" not in plain["metrics"]["speculative_decoding"]
    assert choice["token_ids"] == plain["choices"][0]["token_ids"]
    steps = figures["trace"]
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert token_ids(steps) == choice["token_ids"]
    assert steps[0]["nodes"] == []
    accepted = sum((check_step(step) for step in steps), Counter[str]())
    assert accepted
    assert accepted == {name: n["accepted"] for name, n in figures["by_source"].items() if n["accepted"]}
    drafted = [node for step in steps for node in step["nodes"] if not node["probe"]]
    assert len(drafted) == figures["num_draft_tokens"]
    proposed = Counter(name for node in drafted for name in node["sources"])
    assert proposed == {name: n["proposed"] for name, n in figures["by_source"].items() if n["proposed"]}


@BODIES
async def test_a_stream_reports_each_step_with_its_tokens(real: AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await whole(real, path, body, **TRACED, cache_salt="a")
    options = {"include_usage": path == PATH}
    chunks = await streamed(real, path, body, **TRACED, stream_options=options, cache_salt="b")
    assert steps_of(*chunks) == steps_of(answer)
    for chunk in chunks:
        ids = [token for choice in chunk["choices"] for token in choice["token_ids"]]
        assert token_ids(steps_of(chunk)) == ids
    last, first = chunks[-1]["metrics"]["speculative_decoding"], answer["metrics"]["speculative_decoding"]
    assert {**last, "trace": []} == {**first, "trace": []}


async def test_tokens_after_a_stop_string_are_in_no_trace_and_responses_have_one(real: AsyncClient) -> None:
    free = await whole(real, PATH, TEXT, **TRACED)
    stop = free["choices"][0]["text"][20:26]
    answer = await whole(real, PATH, TEXT, **TRACED, stop=stop)
    [choice] = answer["choices"]
    assert choice["stop_reason"] == stop
    assert token_ids(steps_of(answer)) == choice["token_ids"]
    body = {"model": "tiny", "input": PROMPT, "seed": 4, "max_output_tokens": 20, "speculative": TRACED["speculative"]}
    response = await whole(real, "/v1/responses", body)
    assert len(token_ids(steps_of(response))) == response["usage"]["output_tokens"] > 0


def drafted(step: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens of a step that were drafted."""
    return [token for token in step["tokens"] if token["node"] is not None]


async def test_a_large_trace_is_cut_to_accepted_nodes(real: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    full = steps_of(await whole(real, PATH, TEXT, **TRACED, cache_salt="a"))
    monkeypatch.setattr(choice, "MOST_HELD", 100)
    cut = steps_of(await whole(real, PATH, TEXT, **TRACED, cache_salt="b"))
    assert steps_of(*await streamed(real, PATH, TEXT, **TRACED, cache_salt="c")) == full
    n_nodes = n_cut = 0
    for whole_step, step in zip(full, cut, strict=True):
        n_nodes += len(whole_step["nodes"])
        if n_nodes <= 100:
            assert step == whole_step
            continue
        n_cut += 1
        path = [whole_step["nodes"][token["node"]] for token in drafted(whole_step)]
        assert step["nodes"] == [node | {"parent": i - 1} for i, node in enumerate(path)]
        assert [token["node"] for token in drafted(step)] == list(range(len(path)))
        assert [token["text"] for token in step["tokens"]] == [token["text"] for token in whole_step["tokens"]]
    assert 0 < n_cut < len(cut)
