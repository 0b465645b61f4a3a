"""The request that reaches the backend, and the small endpoints."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from httpx import AsyncClient
from starlette.routing import Route

from deployments.submission.protocol import Submit, decode_commands, encode, encode_message
from engine.errors import ModelChangedError
from engine.model.identity import ModelIdentity
from tests.app.conftest import ScriptedBackend, app_with_context, chunks_of, client_of, error_of

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
TEXT = {"model": "tiny", "prompt": "x", "temperature": 0}


async def post(client: AsyncClient, path: str, **fields: Any) -> dict[str, Any]:
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_defaults_are_openais(client: AsyncClient, backend: ScriptedBackend) -> None:
    await post(client, CHAT_PATH, **CHAT)
    request = backend.seen[0]
    params = request.params
    assert backend.tokenizer.decode(request.prompt) == "<|bos|><|user|>hello<|end|><|assistant|>"
    assert (params.temperature, params.top_p, params.top_k, params.logprobs) == (1.0, 1.0, 0, None)
    assert (params.stop_ids, params.max_tokens) == ((2,), 200)
    assert (request.method, request.max_nodes, request.priority) == ("", 4, 0)
    await post(client, TEXT_PATH, model="tiny", prompt=[5] * 240)
    assert backend.seen[1].params.max_tokens == 16  # the rest of the context


async def test_every_parameter_reaches_the_backend(client: AsyncClient, backend: ScriptedBackend) -> None:
    fields = {"min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 5}
    fields |= {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": -0.4}
    given = {
        "max_completion_tokens": 9,
        "logit_bias": {"17": -100, "18": 2.5},
        "stop": "zzz",
        "stop_token_ids": [30, 31],
    }
    given |= {"ignore_eos": True, "user": "someone", "priority": -3, "verification": "rejection", "tools": []}
    given |= {"speculative": {"method": "pld", "max_nodes": 8}, "response_format": {"type": "text"}, "logprobs": None}
    await post(client, CHAT_PATH, **CHAT, **fields, **given)
    request = backend.seen[0]
    params = request.params
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.max_tokens, params.logit_bias) == (9, {17: -100.0, 18: 2.5})
    assert (params.stop, params.stop_ids, params.verification) == (("zzz",), (30, 31), "rejection")
    assert (request.method, request.max_nodes, request.priority) == ("pld", 8, -3)
    assert (request.tenant, request.namespace) == ("someone", "")
    assert decode_commands(encode([encode_message(Submit(0, request))])) == [Submit(0, request)]
    fields = {"speculative": {"enabled": False, "method": "pld", "max_nodes": 3}, "temperature": 1e-6}
    await post(client, CHAT_PATH, **CHAT, **fields)
    assert backend.seen[1].method == "autoregressive"
    assert backend.seen[1].params.temperature == 0, "no division survives a smaller one"


async def test_a_scope_is_shared_by_equal_namespace_and_salt(client: AsyncClient, backend: ScriptedBackend) -> None:
    salts, namespaces = (None, "a", "b", "/", "A", "x" * 256), (None, "a", "b")
    for _ in range(2):
        for salt, namespace in product(salts, namespaces):
            speculative = {} if namespace is None else {"namespace": namespace}
            await post(client, TEXT_PATH, **TEXT, max_tokens=1, cache_salt=salt, speculative=speculative)
    scopes = [request.scope for request in backend.seen]
    assert scopes[: len(scopes) // 2] == scopes[len(scopes) // 2 :]
    assert len(set(scopes)) == len(salts) * len(namespaces)
    for request in backend.seen:  # a salted request teaches nothing to others
        assert request.teaches == request.scope.endswith("/")
    assert not any("x" in scope for scope in scopes), "a salt is secret: only its digest is passed on"


async def test_choices_differ_only_in_their_number(client: AsyncClient, backend: ScriptedBackend) -> None:
    await client.post(CHAT_PATH, json=CHAT | {"n": 3}, headers={"X-Request-Id": "q"})
    params = [request.params for request in backend.seen]
    assert sorted(p.choice for p in params) == [0, 1, 2]
    assert len({p.seed for p in params}) == 1
    assert sorted((one.id, one.request_id) for one in backend.seen) == [(f"chatcmpl-q-{i}", "q") for i in range(3)]


async def test_text_parts_and_sent_back_answers_are_accepted(client: AsyncClient, backend: ScriptedBackend) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    replayed = {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None, "annotations": []}
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}, replayed]
    await post(client, CHAT_PATH, model="tiny", messages=messages)
    text = backend.tokenizer.decode(backend.seen[0].prompt)
    assert text == "<|bos|><|system|>be brief<|end|><|user|>a\nb<|end|><|assistant|>hi<|end|><|assistant|>"


@pytest.mark.parametrize("prompt", ["hello", ["a", "b"], [5, 6, 7], [[5], [6, 7]]], ids=str)
async def test_completions_accept_any_form_of_prompt(
    client: AsyncClient, backend: ScriptedBackend, prompt: Any
) -> None:
    answer = await post(client, TEXT_PATH, model="tiny", prompt=prompt, max_tokens=2)
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    assert len(answer["choices"]) == len(prompts)
    ids = [backend.tokenizer.encode(one) if isinstance(one, str) else one for one in prompts]
    assert [request.prompt for request in backend.seen] == ids


async def test_tokenize_and_detokenize_are_inverse(client: AsyncClient, backend: ScriptedBackend) -> None:
    plain = await post(client, "/tokenize", model="tiny", prompt="quick fox")
    assert (plain["count"], plain["max_model_len"], plain["tokens"][0]) == (len(plain["tokens"]), 256, 1)
    bare = await post(client, "/tokenize", prompt="quick fox", add_special_tokens=False)
    assert bare["tokens"] == plain["tokens"][1:]
    chat = await post(client, "/tokenize", messages=CHAT["messages"])
    assert backend.tokenizer.decode(chat["tokens"]) == "<|bos|><|user|>hello<|end|><|assistant|>"
    assert (await post(client, "/detokenize", tokens=plain["tokens"])) == {"prompt": "<|bos|>quick fox"}


async def test_long_texts_are_tokenised_whole_despite_a_truncating_tokenizer(backend: ScriptedBackend) -> None:
    text = "fox " * 5000
    ids = backend.tokenizer.encode(text)
    backend.tokenizer.backend_tokenizer.enable_truncation(4)
    async with client_of(app_with_context(backend, 8192)) as client:
        assert (await post(client, "/tokenize", prompt=text))["tokens"] == ids
        assert (await post(client, "/detokenize", tokens=ids[:8192]))["prompt"].startswith("<|bos|>fox fox")
        await post(client, TEXT_PATH, model="tiny", prompt=ids[:8000], max_tokens=1)
        messages = [{"role": "user", "content": text[:6000]}]
        await post(client, CHAT_PATH, model="tiny", messages=messages, max_tokens=1)
    assert backend.seen[0].prompt == ids[:8000]
    assert text[:6000] in backend.tokenizer.decode(backend.seen[1].prompt)


async def test_ready_follows_the_backend_and_health_the_process(
    client: AsyncClient, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ok", "reason": ""})
    backend.is_healthy = False
    ready, health = await client.get("/ready"), await client.get("/health")
    assert (ready.status_code, ready.json()["reason"]) == (503, "no target")
    assert (health.status_code, health.json()) == (200, {"status": "unavailable", "reason": "no target", "replicas": 1})
    monkeypatch.setattr(backend, "health", None)  # fails when called
    health, ping = await client.get("/health"), await client.get("/ping")
    assert (health.status_code, health.json()["reason"]) == (200, "the backend does not answer")
    assert (ping.status_code, ping.content) == (200, b"")
    assert (await client.get("/version")).json() == {"version": "9.9"}
    metrics = await client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "vllm:spec_decode_num_drafts_total 3" in metrics.text


async def test_options_and_a_slash_after_models_are_answered(client: AsyncClient, app: FastAPI) -> None:
    for route in app.routes:
        assert isinstance(route, Route)
        response = await client.options(route.path.replace("{name:path}", "tiny"))
        assert (response.status_code, response.content) == (204, b"")
        assert {*response.headers["allow"].split(", ")} == {*(route.methods or ()), "OPTIONS"}
        assert "access-control-allow-origin" not in response.headers
    error_of(await client.options("/v1/nothing"), 404)
    listed, slashed = await client.get("/v1/models"), await client.get("/v1/models/")
    assert listed.json() == slashed.json()


NEXT = ModelIdentity(weights="b" * 32, tokenizer="t" * 32, revision="c" * 40, numbers="bfloat16")


async def test_requests_are_encoded_for_the_current_model(client: AsyncClient, backend: ScriptedBackend) -> None:
    before = await post(client, CHAT_PATH, **CHAT, max_tokens=4)
    earlier = backend.model_card
    backend.model_card = msgspec.structs.replace(
        earlier, identity=NEXT, fingerprint="fp_next", eos_ids=(7,), max_model_len=64
    )
    after = await post(client, CHAT_PATH, **CHAT, max_tokens=4)
    assert [before["system_fingerprint"], after["system_fingerprint"]] == ["fp", "fp_next"]
    assert [request.model for request in backend.seen] == [earlier.identity.digest, NEXT.digest]
    assert [request.params.stop_ids for request in backend.seen] == [(2,), (7,)]
    [model, _] = (await client.get("/v1/models")).json()["data"]
    shown = [model[name] for name in ("revision", "model_hash", "tokenizer_hash", "max_model_len")]
    assert shown == [NEXT.revision, NEXT.weights, NEXT.tokenizer, 64]
    refused = await client.post(TEXT_PATH, json={"model": "tiny", "prompt": [5] * 64})
    assert error_of(refused, 400)["code"] == "context_length_exceeded"


async def test_a_text_of_the_previous_model_ends_with_an_error(client: AsyncClient, backend: ScriptedBackend) -> None:
    backend.failure = ModelChangedError("the model that this request was meant for is no longer served")
    backend.fails_after = 1
    first, *_, last = chunks_of(await client.post(CHAT_PATH, json=CHAT | {"stream": True}))
    assert "choices" in first
    assert last["error"]["code"] == "model_changed"
    backend.fails_after = 0
    refused = await client.post(CHAT_PATH, json=CHAT)
    assert error_of(refused, 503)["code"] == "model_changed"
    assert refused.headers["retry-after"] == "1"
