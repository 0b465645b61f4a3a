"""What reaches the backend, and the small endpoints."""

from __future__ import annotations

from itertools import product

import httpx
import msgspec
import pytest

from app.api.application import create_app
from app.api.http import Api
from app.api.service import Settings
from deployments.submission.protocol import Submit, decode_commands, encode, encode_message

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


async def post(client: httpx.AsyncClient, path: str, **fields) -> dict:
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_defaults_are_openais(client, backend) -> None:
    await post(client, "/v1/chat/completions", **CHAT)
    request = backend.seen[0]
    params = request.params
    assert backend.tokenizer.decode(request.prompt) == "<|bos|><|user|>hello<|end|><|assistant|>"
    assert (params.temperature, params.top_p, params.top_k, params.logprobs) == (1.0, 1.0, 0, None)
    assert params.stop_ids == (2,)
    assert params.max_tokens == 200
    assert (request.method, request.max_nodes, request.priority) == ("", None, 0)


async def test_a_request_without_limit_gets_what_fits(client, backend) -> None:
    await post(client, "/v1/completions", model="tiny", prompt=[5] * 240)
    assert backend.seen[0].params.max_tokens == 16


async def test_every_parameter_arrives(client, backend) -> None:
    fields = {
        "max_completion_tokens": 9,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.4,
        "logit_bias": {"17": -100, "18": 2.5},
        "stop": "zzz",
        "stop_token_ids": [30, 31],
        "ignore_eos": True,
        "seed": 5,
        "user": "someone",
        "priority": -3,
        "verification": "rejection",
        "speculative": {"method": "pld", "max_nodes": 8},
        "tools": [],
        "response_format": {"type": "text"},
        "logprobs": None,
    }
    await post(client, "/v1/chat/completions", **CHAT, **fields)
    request = backend.seen[0]
    params = request.params
    assert (params.max_tokens, params.min_tokens, params.temperature, params.top_p) == (9, 2, 0.5, 0.9)
    assert (params.top_k, params.min_p, params.repetition_penalty) == (7, 0.1, 1.2)
    assert (params.presence_penalty, params.frequency_penalty) == (0.3, -0.4)
    assert params.logit_bias == {17: -100.0, 18: 2.5}
    assert (params.stop, params.stop_ids, params.seed, params.verification) == (("zzz",), (30, 31), 5, "rejection")
    assert (request.method, request.max_nodes, request.priority) == ("pld", 8, -3)
    assert (request.tenant, request.namespace) == ("someone", "")


async def test_disabled_speculation_is_the_autoregressive_method(client, backend) -> None:
    await post(client, "/v1/chat/completions", **CHAT, speculative={"enabled": False, "method": "pld", "max_nodes": 3})
    assert (backend.seen[0].method, backend.seen[0].max_nodes) == ("autoregressive", None)


@pytest.mark.parametrize(("temperature", "served"), [(1e-6, 0.0), (5e-324, 0.0), (1e-5, 1e-5)])
async def test_temperatures_that_no_division_survives_are_greedy(client, backend, temperature, served) -> None:
    await post(client, "/v1/chat/completions", **CHAT, temperature=temperature)
    assert backend.seen[0].params.temperature == served


async def test_requests_share_a_scope_only_where_namespace_and_salt_agree(client, backend) -> None:
    salts = (None, "a", "b", "/", "A", "x" * 256)
    namespaces = (None, "a", "b")
    for _ in range(2):
        for salt, namespace in product(salts, namespaces):
            speculative = {} if namespace is None else {"namespace": namespace}
            await post(client, "/v1/completions", model="tiny", prompt="Hi", cache_salt=salt, speculative=speculative)
    scopes = [request.scope for request in backend.seen]
    assert scopes[: len(scopes) // 2] == scopes[len(scopes) // 2 :]
    assert len(set(scopes)) == len(salts) * len(namespaces)
    assert {request.teaches for request in backend.seen if request.scope.endswith("/")} == {True}
    salted = [request.teaches for request in backend.seen if not request.scope.endswith("/")]
    assert not any(salted), "nothing that a salted request wrote is drafted for others"
    assert not any("x" in scope for scope in scopes), "a salt is a secret: only its digest travels"


async def test_choices_differ_in_nothing_but_their_number(client, backend) -> None:
    await post(client, "/v1/chat/completions", **CHAT, n=3)
    params = [request.params for request in backend.seen]
    assert sorted(p.choice for p in params) == [0, 1, 2]
    assert len({p.seed for p in params}) == 1
    assert len({request.id for request in backend.seen}) == 3


async def test_text_parts_and_replayed_answers_are_taken(client, backend) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    replayed = {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None, "annotations": []}
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}, replayed]
    await post(client, "/v1/chat/completions", model="tiny", messages=messages)
    text = backend.tokenizer.decode(backend.seen[0].prompt)
    assert text == "<|bos|><|system|>be brief<|end|><|user|>a\nb<|end|><|assistant|>hi<|end|><|assistant|>"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("hello", 1), (["a", "b"], 2), ([5, 6, 7], 1), ([[5], [6, 7]], 2)],
)
async def test_completions_take_every_form_of_prompt(client, backend, prompt: object, expected: int) -> None:
    answer = await post(client, "/v1/completions", model="tiny", prompt=prompt, max_tokens=2)
    assert len(answer["choices"]) == expected
    prompts = [request.prompt for request in backend.seen]
    if isinstance(prompt, str):
        assert prompts[0][0] == 1  # the tokenizer's own special tokens
    elif prompt == [5, 6, 7]:
        assert prompts == [[5, 6, 7]]


def roomy(backend) -> httpx.AsyncClient:
    """A client of an edge whose model has a long context."""
    backend.model_card = msgspec.structs.replace(backend.model_card, max_model_len=8192)
    app = create_app(Api(backend, backend.tokenizer, Settings()))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge")


async def test_long_texts_are_tokenised_like_short_ones(backend) -> None:
    text = "fox " * 5000
    async with roomy(backend) as client:
        ids = (await post(client, "/tokenize", prompt=text))["tokens"]
        assert ids == backend.tokenizer.encode(text)
        assert (await post(client, "/detokenize", tokens=ids[:8192]))["prompt"].startswith("<|bos|>fox fox")
        await post(client, "/v1/completions", model="tiny", prompt=ids[:8000])
        await post(client, "/v1/chat/completions", model="tiny", messages=[{"role": "user", "content": text[:6000]}])
    assert backend.seen[0].prompt == ids[:8000]
    assert text[:6000] in backend.tokenizer.decode(backend.seen[1].prompt)


async def test_a_tokenizers_own_truncation_never_cuts_a_prompt(backend) -> None:
    backend.tokenizer.backend_tokenizer.enable_truncation(4)
    async with roomy(backend) as client:
        assert (await post(client, "/tokenize", prompt="fox " * 20))["count"] > 20


async def test_a_stop_id_is_reported_and_is_no_text(client, backend) -> None:
    ids = backend.tokenizer.encode(backend.answer, add_special_tokens=False)
    answer = await post(
        client, "/v1/completions", model="tiny", prompt="x", temperature=0, stop_token_ids=[ids[4]], ignore_eos=True
    )
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ids[4])
    assert choice["text"] == backend.tokenizer.decode(ids[: ids.index(ids[4])])
    assert answer["usage"]["completion_tokens"] == ids.index(ids[4]) + 1


async def test_a_limit_in_mid_character_ends_in_a_replacement_mark(client, backend) -> None:
    backend.answer = "ab🦊"
    answer = await post(client, "/v1/completions", model="tiny", prompt="x", temperature=0, max_tokens=4)
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("ab\ufffd", "length")


async def test_metrics_are_left_out_when_drafts_were_not_counted(client, backend) -> None:
    backend.reports_drafts = False
    fields = {"model": "tiny", "prompt": "x", "temperature": 0}
    assert (await post(client, "/v1/completions", **fields, stop="STOP"))["metrics"] == {}
    assert (await post(client, "/v1/completions", **fields))["metrics"]["speculative_decoding"]["num_spec_steps"] > 0


async def test_tokenize_and_detokenize_are_inverse(client, backend) -> None:
    plain = await post(client, "/tokenize", model="tiny", prompt="quick fox")
    assert (plain["count"], plain["max_model_len"], plain["tokens"][0]) == (len(plain["tokens"]), 256, 1)
    bare = await post(client, "/tokenize", prompt="quick fox", add_special_tokens=False)
    assert bare["tokens"] == plain["tokens"][1:]
    chat = await post(client, "/tokenize", messages=CHAT["messages"])
    assert backend.tokenizer.decode(chat["tokens"]) == "<|bos|><|user|>hello<|end|><|assistant|>"
    assert (await post(client, "/detokenize", tokens=plain["tokens"])) == {"prompt": "<|bos|>quick fox"}


async def test_ready_tells_whether_requests_are_served_and_health_that_the_process_lives(client, backend) -> None:
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ok", "reason": ""})
    backend.is_healthy = False
    response = await client.get("/ready")
    assert (response.status_code, response.json()["reason"]) == (503, "no target")
    response = await client.get("/health")
    assert (response.status_code, response.json()["status"]) == (200, "unavailable")
    assert (response.json()["reason"], response.json()["replicas"]) == ("no target", 1)
    backend.health = None  # cannot even be asked
    response = await client.get("/health")
    assert (response.status_code, response.json()["reason"]) == (200, "the backend does not answer")
    ping = await client.get("/ping")
    assert (ping.status_code, ping.content) == (200, b"")


async def test_version_and_metrics(client) -> None:
    assert (await client.get("/version")).json() == {"version": "9.9"}
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "vllm:spec_decode_num_drafts_total 3" in response.text


WIDE = (2**31 - 1, 2**31, 2**63, 2**64, 2**70, 10**400)
INTEGERS = {
    "max_tokens": lambda n: {"max_tokens": n},
    "max_completion_tokens": lambda n: {"max_completion_tokens": n},
    "min_tokens": lambda n: {"min_tokens": n},
    "top_k": lambda n: {"top_k": n},
    "seed": lambda n: {"seed": n},
    "n": lambda n: {"n": n},
    "priority": lambda n: {"priority": n},
    "top_logprobs": lambda n: {"logprobs": True, "top_logprobs": n},
    "stop_token_ids": lambda n: {"stop_token_ids": [n]},
    "logit_bias": lambda n: {"logit_bias": {str(n): 1}},
    "max_nodes": lambda n: {"speculative": {"max_nodes": n}},
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("field", INTEGERS)
async def test_every_integer_is_refused_or_survives_the_way_to_the_router(client, backend, field, sign) -> None:
    for number in WIDE:
        body = CHAT | INTEGERS[field](sign * number)
        response = await client.post("/v1/chat/completions", json=body)
        assert response.status_code in (200, 400), response.text
        if response.status_code == 400:
            assert response.json()["error"]["type"] == "invalid_request_error"
    for request in backend.seen:
        assert decode_commands(encode([encode_message(Submit(0, request))])) == [Submit(0, request)]


@pytest.mark.parametrize("token", [2**31, 2**64, -(2**64), 10**400])
@pytest.mark.parametrize("path", ["/v1/completions", "/detokenize"])
async def test_token_ids_beyond_32_bits_are_refused(client, backend, path, token) -> None:
    body = {"model": "tiny", "tokens" if path == "/detokenize" else "prompt": [5, token]}
    response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert not backend.seen
