"""An edge whose model is replaced: it encodes for the next one, and says so where a text cannot go on."""

from __future__ import annotations

import json

import httpx
import msgspec

from engine.errors import ModelChangedError
from engine.model.identity import ModelIdentity

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
CHAT_PATH = "/v1/chat/completions"
NEXT = ModelIdentity(weights="b" * 32, tokenizer="t" * 32, revision="c" * 40, numbers="bfloat16")


async def test_an_edge_encodes_for_the_model_that_is_served_now(client: httpx.AsyncClient, backend) -> None:
    before = (await client.post(CHAT_PATH, json=CHAT)).json()
    earlier = backend.model_card
    backend.model_card = msgspec.structs.replace(
        earlier, identity=NEXT, fingerprint="fp_next", eos_ids=(7,), max_model_len=64
    )
    after = (await client.post(CHAT_PATH, json=CHAT)).json()
    assert [before["system_fingerprint"], after["system_fingerprint"]] == ["fp", "fp_next"]
    assert [request.model for request in backend.seen] == [earlier.identity.digest, NEXT.digest]
    assert [request.params.stop_ids for request in backend.seen] == [(2,), (7,)]
    [model] = [one for one in (await client.get("/v1/models")).json()["data"] if one["id"] == "tiny"]
    assert [model[name] for name in ("revision", "model_hash", "tokenizer_hash", "max_model_len")] == [
        NEXT.revision,
        NEXT.weights,
        NEXT.tokenizer,
        64,
    ]
    long = {"model": "tiny", "prompt": [5] * 64}
    assert (await client.post("/v1/completions", json=long)).json()["error"]["code"] == "context_length_exceeded"


async def test_a_text_that_the_model_before_began_ends_with_an_error(client: httpx.AsyncClient, backend) -> None:
    backend.failure = ModelChangedError("the model that this request was meant for is no longer served")
    backend.fails_after = 1
    answer = await client.post(CHAT_PATH, json=CHAT | {"stream": True})
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    assert "choices" in json.loads(lines[0].removeprefix("data: "))
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "model_changed"
    backend.fails_after = 0
    refused = await client.post(CHAT_PATH, json=CHAT)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["code"] == "model_changed"
