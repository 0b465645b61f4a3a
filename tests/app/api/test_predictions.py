"""Predicted outputs over HTTP: their ids reach the backend, usage reports them, and texts stay the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient

from app.inputs.tokenizers import load_tokenizer
from tests.app.api.engine_backend import over_engine
from tests.app.conftest import ScriptedBackend, chunks_of

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
TEXT = "the quick brown fox jumps over the lazy dog"
PARTS = [{"type": "text", "text": part} for part in (TEXT[:8], TEXT[8:])]


def predicted(content: Any) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


@pytest.fixture
async def real(tiny_checkpoint: Path) -> AsyncIterator[AsyncClient]:
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        yield client


async def answer(client: AsyncClient, path: str = TEXT_PATH, **fields: Any) -> dict[str, Any]:
    response = await client.post(path, json={"model": "tiny", **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


@pytest.mark.parametrize(("path", "content"), [(CHAT_PATH, TEXT), (CHAT_PATH, PARTS), (TEXT_PATH, PARTS)])
async def test_a_prediction_reaches_the_backend_as_ids_of_its_text(
    client: AsyncClient, backend: ScriptedBackend, path: str, content: Any
) -> None:
    fields: dict[str, Any] = {"messages": MESSAGES} if path == CHAT_PATH else {"prompt": ["a", "b"]}
    await answer(client, path, **fields, **predicted(content), n=2)
    assert len(backend.seen) == (2 if path == CHAT_PATH else 4)
    for request in backend.seen:
        assert backend.tokenizer.decode(request.prediction) == TEXT
    await answer(client, path, **fields, **predicted(content), speculative={"enabled": False, "method": "pld"})
    assert backend.seen[-1].method == "autoregressive"  # plain decoding, for a comparison


@pytest.mark.parametrize("style", [{"temperature": 0}, {"temperature": 0.9, "seed": 4}], ids=str)
async def test_a_right_prediction_saves_forwards_and_keeps_the_text(real: AsyncClient, style: dict[str, Any]) -> None:
    fields = {"prompt": "Snow falls on", "max_tokens": 60, **style}
    plain = await answer(real, **fields, speculative={"enabled": False})
    fields |= predicted(plain["choices"][0]["text"])
    fast = await answer(real, **fields)
    assert fast["choices"] == plain["choices"]
    details, written = fast["usage"]["completion_tokens_details"], fast["usage"]["completion_tokens"]
    figures = fast["metrics"]["speculative_decoding"]
    counts = figures["by_source"]["prediction"]
    assert figures["num_spec_steps"] < written
    assert details["accepted_prediction_tokens"] == counts["proposed_accepted"] > 0
    assert details["rejected_prediction_tokens"] == counts["proposed"] - counts["proposed_accepted"]
    fields |= {"speculative": {"method": "prediction"}}
    whole = await answer(real, **fields)
    body = {"model": "tiny", **fields, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = chunks_of(await real.post(TEXT_PATH, json=body))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == plain["choices"][0]["text"]
    assert last["usage"] == whole["usage"]


@pytest.mark.parametrize("method", ["auto", "prediction", "prediction+suffix"])
async def test_a_useless_prediction_keeps_the_text_and_is_reported_as_rejected(real: AsyncClient, method: str) -> None:
    fields = {"messages": MESSAGES, "max_tokens": 40, "temperature": 0.8, "seed": 9}
    plain = await answer(real, CHAT_PATH, **fields, speculative={"enabled": False})
    useless = await answer(real, CHAT_PATH, **fields, **predicted(TEXT * 3), speculative={"method": method})
    assert useless["choices"] == plain["choices"]
    details = useless["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] <= details["rejected_prediction_tokens"] + 5
