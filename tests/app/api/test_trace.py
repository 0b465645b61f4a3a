"""What ``speculative.trace`` tells: every token's source and every step's tree, the same streamed and whole."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api import generation
from app.inputs.tokenizers import load_tokenizer
from tests.support.engine_backend import over_engine

PROMPT = "the quick brown fox jumps over the lazy dog and the quick brown fox sleeps. the quick"
METHOD = {"method": "pld+suffix+token-recycling", "trace": True}
TEXT = {"model": "tiny", "prompt": PROMPT, "temperature": 0.8, "seed": 4, "max_tokens": 60, "ignore_eos": True}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "seed": 4, "max_tokens": 40}
BODIES = pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)], ids=["text", "chat"]
)


async def whole(client: httpx.AsyncClient, path: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = await client.post(path, json=body | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def streamed(client: httpx.AsyncClient, path: str, body: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The steps in all chunks of a stream."""
    response = await client.post(path, json=body | fields | {"stream": True})
    chunks = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
    return [step for chunk in chunks for choice in chunk["choices"] for step in choice.get("trace") or ()]


@BODIES
async def test_a_trace_accounts_for_every_token_and_every_node(
    path: str, body: dict[str, Any], tiny_checkpoint: Path
) -> None:
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        answer = await whole(client, path, body, speculative=METHOD, return_token_ids=True, cache_salt="a")
        assert await streamed(client, path, body, speculative=METHOD, cache_salt="b") == answer["choices"][0]["trace"]
        plain = await whole(client, path, body, speculative={"method": METHOD["method"]}, return_token_ids=True)
    [choice], figures = answer["choices"], answer["metrics"]["speculative_decoding"]
    assert "trace" not in plain["choices"][0]
    assert choice["token_ids"] == plain["choices"][0]["token_ids"]
    steps = choice["trace"]
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert [token["token_id"] for step in steps for token in step["tokens"]] == choice["token_ids"]
    assert steps[0]["nodes"] is None
    accepted: Counter[str] = Counter()
    for step in steps[1:]:
        above, nodes = -1, step["nodes"]
        for token in step["tokens"]:
            if token["node"] is None:
                assert (token["source"], token) == (None, step["tokens"][-1])
                continue
            node = nodes[token["node"]]
            assert (node["parent"], node["accepted"], node["probe"]) == (above, True, False)
            assert (node["token_id"], node["text"]) == (token["token_id"], token["text"])
            assert node["sources"][0] == token["source"]
            accepted[token["source"]] += 1
            above = token["node"]
        assert all(node["parent"] < i for i, node in enumerate(nodes))
    assert sum(accepted.values()) > 5
    told = {name: counts["accepted"] for name, counts in figures["by_source"].items() if counts["accepted"]}
    assert accepted == told
    drafted = [node for step in steps[1:] for node in step["nodes"] if not node["probe"]]
    assert len(drafted) == figures["num_draft_tokens"]
    proposed = Counter(name for node in drafted for name in node["sources"])
    assert proposed == {name: counts["proposed"] for name, counts in figures["by_source"].items() if counts["proposed"]}


async def test_tokens_behind_a_stop_string_are_in_no_trace(tiny_checkpoint: Path) -> None:
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        free = await whole(client, "/v1/completions", TEXT, speculative=METHOD)
        stop = free["choices"][0]["text"][40:46]
        answer = await whole(client, "/v1/completions", TEXT, speculative=METHOD, stop=stop, return_token_ids=True)
    [choice] = answer["choices"]
    assert choice["stop_reason"] == stop
    assert [token["token_id"] for step in choice["trace"] for token in step["tokens"]] == choice["token_ids"]


async def test_beyond_a_limit_steps_are_told_without_their_trees(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "MOST_TRACED", 200)
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        answer = await whole(client, "/v1/completions", TEXT, speculative=METHOD)
    steps = answer["choices"][0]["trace"]
    trees = [step["nodes"] for step in steps[1:]]
    n_told = sum(tree is not None for tree in trees)
    assert 0 < n_told < len(trees)
    assert None not in trees[:n_told]
    assert sum(len(tree) for tree in trees[:n_told]) <= 200
    assert sum(len(step["tokens"]) for step in steps) == TEXT["max_tokens"]


async def test_items_have_no_place_for_a_trace(tiny_checkpoint: Path) -> None:
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        response = await client.post("/v1/responses", json={"model": "tiny", "input": "hi", "speculative": METHOD})
    assert response.status_code == 400
    assert "speculative.trace" in response.json()["error"]["message"]
