"""Predicted outputs over HTTP: what is taken, what reaches the backend, what usage says, and that texts stay."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.requests.parsing import parse
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest
from app.inputs.tokenizers import load_tokenizer
from tests.support.engine_backend import over_engine

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
TEXT = "the quick brown fox jumps over the lazy dog"


def predicted(content: Any, **more: Any) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content, **more}}


@pytest.fixture
async def real(tiny_checkpoint: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an edge in front of a real engine."""
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        yield client


async def answer(client: httpx.AsyncClient, path: str = "/v1/completions", **fields: Any) -> dict[str, Any]:
    response = await client.post(path, json={"model": "tiny", **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def refusal(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/chat/completions", json={**CHAT, **fields})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "content",
    [TEXT, [{"type": "text", "text": TEXT}], [{"type": "text", "text": part} for part in (TEXT[:8], TEXT[8:])]],
)
async def test_a_prediction_reaches_the_backend_as_ids_of_its_text(client, backend, path, content) -> None:
    asked = CHAT if "chat" in path else {"model": "tiny", "prompt": ["a", "b"]}
    response = await client.post(path, json={**asked, **predicted(content), "n": 2})
    assert response.status_code == 200, response.text
    assert len(backend.seen) == (2 if "chat" in path else 4)
    for request in backend.seen:
        assert backend.tokenizer.decode(request.prediction) == TEXT


@pytest.mark.parametrize("nothing", [{}, {"prediction": None}, predicted(""), predicted([])])
async def test_nothing_predicted_is_no_prediction(client, backend, nothing) -> None:
    response = await client.post("/v1/chat/completions", json={**CHAT, **nothing})
    assert backend.seen[0].prediction == []
    assert "completion_tokens_details" not in response.json()["usage"]


@pytest.mark.parametrize(
    ("wrong", "param", "says"),
    [
        ({"prediction": TEXT}, "prediction", "must be an object"),
        ({"prediction": {"content": TEXT}}, "prediction.type", "missing"),
        ({"prediction": {"type": "content"}}, "prediction.content", "missing"),
        ({"prediction": {"type": "tokens", "content": TEXT}}, "prediction.type", "'content'"),
        (predicted(TEXT, weight=1), "prediction.weight", "unknown field"),
        (predicted(7), "prediction.content", "string"),
        (predicted([{"type": "image_url", "image_url": ""}]), "prediction.content", "parts"),
        (predicted([{"type": "text", "text": 3}]), "prediction.content", "string"),
        (predicted("word " * 300), "prediction", "256"),
        (predicted("x" * 100_000), "prediction", "256"),
        ({**predicted(TEXT), "speculative": {"method": "pld"}}, "speculative.method", "prediction+suffix"),
    ],
)
async def test_what_cannot_be_drafted_from_is_refused_by_name(client, backend, wrong, param, says) -> None:
    error = await refusal(client, **wrong)
    assert error["param"] == param
    assert says in error["message"]
    assert backend.seen == []


async def test_plain_decoding_may_have_a_prediction_to_compare_with(client, backend) -> None:
    await answer(client, prompt="a", **predicted(TEXT), speculative={"enabled": False, "method": "pld"})
    assert backend.seen[0].method == "autoregressive"


@pytest.mark.parametrize(("schema", "asked"), [(ChatCompletionRequest, CHAT), (CompletionRequest, {"prompt": "a"})])
def test_tokenising_a_long_prediction_counts_as_work(schema, asked) -> None:
    without, body = ({"model": "tiny", **asked, **more} for more in ({}, predicted("x" * 5000)))
    weights = [parse(schema, json.dumps(fields).encode(), 1000).weight for fields in (without, body)]
    assert weights[1] == weights[0] + 4 * 5000


@pytest.mark.parametrize("style", [{"temperature": 0}, {"temperature": 0.9, "seed": 4}])
async def test_a_right_prediction_saves_forwards_and_keeps_the_text(real, style) -> None:
    asked = {"prompt": "Snow falls on", "max_tokens": 80, **style}
    plain = await answer(real, **asked, speculative={"enabled": False})
    text = plain["choices"][0]["text"]
    fast = await answer(real, **asked, **predicted(text))
    assert fast["choices"] == plain["choices"]
    details = fast["usage"]["completion_tokens_details"]
    written = fast["usage"]["completion_tokens"]
    steps = fast["metrics"]["speculative_decoding"]["num_spec_steps"]
    counts = fast["metrics"]["speculative_decoding"]["by_source"]["prediction"]
    assert steps < written / 2  # a random model cuts its text into other tokens than the tokenizer does
    assert details["accepted_prediction_tokens"] == counts["proposed_accepted"] > written / 4
    assert details["rejected_prediction_tokens"] == counts["proposed"] - counts["proposed_accepted"]


@pytest.mark.parametrize("method", ["auto", "prediction", "prediction+suffix"])
async def test_a_useless_prediction_keeps_the_text_and_is_reported_as_rejected(real, method) -> None:
    asked = {"messages": CHAT["messages"], "max_tokens": 60, "temperature": 0.8, "seed": 9}
    path = "/v1/chat/completions"
    plain = await answer(real, path, **asked, speculative={"enabled": False})
    useless = await answer(real, path, **asked, **predicted(TEXT * 3), speculative={"method": method})
    assert useless["choices"] == plain["choices"]
    details = useless["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] <= details["rejected_prediction_tokens"] + 5


async def test_a_stream_ends_with_the_same_usage(real) -> None:
    asked = {"prompt": "Snow falls on", "max_tokens": 50, "temperature": 0.0}
    text = (await answer(real, **asked))["choices"][0]["text"]
    whole = await answer(real, **asked, **predicted(text), speculative={"method": "prediction"})
    body = {"model": "tiny", **asked, **predicted(text), "speculative": {"method": "prediction"}}
    response = await real.post(
        "/v1/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    chunks = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == text
    assert chunks[-1]["usage"] == whole["usage"]
    assert chunks[-1]["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0
