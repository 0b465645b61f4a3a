"""What ``speculative.trace`` tells: every token's source and every step's tree, the same streamed and whole."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api import choice
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


def steps_of(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The traces of a response, or of all chunks of a stream."""
    metrics = [answer.get("metrics", {}).get("speculative_decoding", {}) for answer in answers]
    return [step for figures in metrics for step in figures.get("trace", ())]


async def streamed(client: httpx.AsyncClient, path: str, body: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a stream."""
    response = await client.post(path, json=body | fields | {"stream": True})
    return [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]


@BODIES
async def test_a_trace_accounts_for_every_token_and_every_node(
    path: str, body: dict[str, Any], tiny_checkpoint: Path
) -> None:
    fields = {"speculative": METHOD, "return_token_ids": True}
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        answer = await whole(client, path, body, **fields, cache_salt="a")
        plain = await whole(client, path, body, speculative={"method": METHOD["method"]}, return_token_ids=True)
    [choice], figures = answer["choices"], answer["metrics"]["speculative_decoding"]
    assert "trace" not in plain["metrics"]["speculative_decoding"]
    assert choice["token_ids"] == plain["choices"][0]["token_ids"]
    steps = figures["trace"]
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert [token["token_id"] for step in steps for token in step["tokens"]] == choice["token_ids"]
    assert steps[0]["nodes"] == []
    accepted: Counter[str] = Counter()
    for step in steps:
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
            assert node["probability"] is not None
            assert 0 < node["probability"] <= 1
    assert sum(accepted.values()) > 5
    told = {name: counts["accepted"] for name, counts in figures["by_source"].items() if counts["accepted"]}
    assert accepted == told
    drafted = [node for step in steps for node in step["nodes"] if not node["probe"]]
    assert len(drafted) == figures["num_draft_tokens"]
    proposed = Counter(name for node in drafted for name in node["sources"])
    assert proposed == {name: counts["proposed"] for name, counts in figures["by_source"].items() if counts["proposed"]}


@BODIES
@pytest.mark.parametrize("include_usage", [False, True])
async def test_a_stream_tells_each_step_once_with_its_tokens(
    path: str, body: dict[str, Any], include_usage: bool, tiny_checkpoint: Path
) -> None:
    fields = {"speculative": METHOD, "return_token_ids": True}
    options = {"stream_options": {"include_usage": include_usage}}
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        answer = await whole(client, path, body, **fields, cache_salt="a")
        chunks = await streamed(client, path, body, **fields, **options, cache_salt="b")
    assert steps_of(chunks) == steps_of([answer])
    for chunk in chunks:
        ids = [token for choice in chunk["choices"] for token in choice["token_ids"]]
        assert [token["token_id"] for step in steps_of([chunk]) for token in step["tokens"]] == ids
    last, first = chunks[-1]["metrics"]["speculative_decoding"], answer["metrics"]["speculative_decoding"]
    assert {**last, "trace": []} == {**first, "trace": []}


async def test_tokens_behind_a_stop_string_are_in_no_trace(tiny_checkpoint: Path) -> None:
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        free = await whole(client, "/v1/completions", TEXT, speculative=METHOD)
        stop = free["choices"][0]["text"][40:46]
        answer = await whole(client, "/v1/completions", TEXT, speculative=METHOD, stop=stop, return_token_ids=True)
    [choice] = answer["choices"]
    assert choice["stop_reason"] == stop
    assert [token["token_id"] for step in steps_of([answer]) for token in step["tokens"]] == choice["token_ids"]


async def test_a_whole_answer_tells_the_accepted_nodes_alone_beyond_a_limit(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        full = steps_of([await whole(client, "/v1/completions", TEXT, speculative=METHOD, cache_salt="a")])
        monkeypatch.setattr(choice, "MOST_HELD", 200)
        cut = steps_of([await whole(client, "/v1/completions", TEXT, speculative=METHOD, cache_salt="b")])
        assert steps_of(await streamed(client, "/v1/completions", TEXT, speculative=METHOD, cache_salt="c")) == full
    n_nodes = n_cut = 0
    for whole_step, step in zip(full, cut, strict=True):
        n_nodes += len(whole_step["nodes"])
        if n_nodes <= 200:
            assert step == whole_step
            continue
        n_cut += 1
        path = [whole_step["nodes"][token["node"]] for token in drafted(whole_step)]
        assert step["nodes"] == [node | {"parent": i - 1} for i, node in enumerate(path)]
        assert [token["node"] for token in drafted(step)] == list(range(len(path)))
        assert [token["text"] for token in step["tokens"]] == [token["text"] for token in whole_step["tokens"]]
    assert 0 < n_cut < len(cut)


def drafted(step: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens of a step that were drafted."""
    return [token for token in step["tokens"] if token["node"] is not None]


@pytest.mark.parametrize("fields", [{"n": 2}, {"prompt": [PROMPT, "hello"]}])
async def test_several_choices_are_not_traced(fields: dict[str, Any], tiny_checkpoint: Path) -> None:
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        response = await client.post("/v1/completions", json=TEXT | fields | {"speculative": METHOD})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"
    assert response.json()["error"]["message"].endswith("it must be at most 1 with speculative.trace")


async def test_a_response_of_items_has_the_trace_among_its_metrics_too(tiny_checkpoint: Path) -> None:
    asked = {"model": "tiny", "input": PROMPT, "seed": 4, "max_output_tokens": 40, "speculative": METHOD}
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        answer = await whole(client, "/v1/responses", asked)
    n_tokens = sum(len(step["tokens"]) for step in steps_of([answer]))
    assert n_tokens == answer["usage"]["output_tokens"] > 0
