"""Every field of OpenAI's and vLLM's requests is decided: honoured, accepted without effect, or refused by name."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from httpx import AsyncClient
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params

from app.api.requests.declined_fields import DECLINED
from tests.app.conftest import ScriptedBackend, error_of
from tools.request_fields import PAGE, SCHEMAS, page_with_table

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "tokenize": "/tokenize",
}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0},
    "completions": {"model": "tiny", "prompt": "hello", "temperature": 0},
    "responses": {"model": "tiny", "input": "hello", "temperature": 0},
    "tokenize": {"prompt": "hello"},
}
OPENAI = {
    "chat": chat_params.CompletionCreateParamsStreaming,
    "completions": text_params.CompletionCreateParamsStreaming,
    "responses": response_create_params.ResponseCreateParamsStreaming,
}
GENERATION = """
    model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options
    temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
    add_special_tokens response_format structured_outputs priority request_id session_id return_tokens_as_token_ids
    return_token_ids routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params
    ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval best_of logits_processors
    guided_json guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern
"""
TEMPLATE = """
    messages tools add_generation_prompt continue_final_message chat_template chat_template_kwargs media_io_kwargs
    mm_processor_kwargs
"""
VLLM = {
    "chat": GENERATION
    + TEMPLATE
    + """
    top_logprobs max_completion_tokens tool_choice reasoning_effort include_reasoning parallel_tool_calls documents
    return_prompt_text
    """,
    "completions": GENERATION + "prompt suffix prompt_embeds",
    "responses": """
    background include input instructions max_output_tokens max_tool_calls metadata model logit_bias parallel_tool_calls
    previous_response_id prompt reasoning service_tier store stream temperature text tool_choice tools top_logprobs
    top_p top_k truncation user skip_special_tokens include_stop_str_in_output prompt_cache_key request_id
    mm_processor_kwargs priority cache_salt enable_response_messages previous_input_messages previous_response
    structured_outputs repetition_penalty seed stop ignore_eos vllm_xargs
    """,
    "tokenize": TEMPLATE + "model prompt add_special_tokens return_token_strs",
}


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.endpoint)
def test_every_field_of_openai_and_vllm_is_decided_once(schema: Any) -> None:
    known, declined = set(schema.model_fields), set(DECLINED[schema.endpoint])
    published = set(VLLM[schema.endpoint].split())
    if schema.endpoint in OPENAI:
        published |= set(get_type_hints(OPENAI[schema.endpoint]))
    assert len(published) >= 12
    assert not published - known - declined
    assert not known & declined


def test_the_table_of_the_documentation_is_current() -> None:
    page = PAGE.read_text()
    assert page_with_table(page) == page, "run python -m tools.request_fields"


async def answer_to(client: AsyncClient, endpoint: str, fields: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(PATHS[endpoint], json=BODIES[endpoint] | fields)
    assert response.status_code == 200, (fields, response.text)
    return dict(response.json())


@pytest.mark.parametrize("endpoint", PATHS)
async def test_neutral_values_are_accepted_and_others_are_refused_by_name(
    client: AsyncClient, backend: ScriptedBackend, endpoint: str
) -> None:
    declined = DECLINED[endpoint]
    neutral = {name: field.neutral[-1] for name, field in declined.items() if field.neutral}
    plain, accepted = [await answer_to(client, endpoint, fields) for fields in ({}, neutral)]
    assert plain.keys() == accepted.keys()
    for one, other in zip(backend.seen, backend.seen[1:], strict=False):
        assert (one.prompt, one.params.max_tokens) == (other.prompt, other.params.max_tokens)
    for name, field in declined.items():
        response = await client.post(PATHS[endpoint], json=BODIES[endpoint] | {name: "something else"})
        error = error_of(response, 400)
        assert error["param"] == name
        assert error["message"].startswith(f"{name} is 'something else'; this server does not support it")
        assert field.advice in error["message"]


@pytest.mark.parametrize("endpoint", PATHS)
async def test_a_null_is_an_absent_field_whatever_its_name(client: AsyncClient, endpoint: str) -> None:
    names = [*DECLINED[endpoint], "unknown_field", "seed" if endpoint != "tokenize" else "model"]
    assert await answer_to(client, endpoint, dict.fromkeys(names))


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_integers_may_be_written_as_doubles(client: AsyncClient, backend: ScriptedBackend, endpoint: str) -> None:
    fields = {"max_tokens": 5, "min_tokens": 2, "top_k": 3, "seed": 7, "n": 2, "priority": 1, "prompt_logprobs": 1}
    fields |= {"truncate_prompt_tokens": 4, "temperature": 1}
    nested: dict[str, Any] = {"stop_token_ids": [5, 6], "speculative": {"max_nodes": 3}}
    doubles = {name: float(value) for name, value in fields.items()}
    doubles |= {"stop_token_ids": [5.0, 6], "speculative": {"max_nodes": 3.0}}
    await answer_to(client, endpoint, fields | nested)
    await answer_to(client, endpoint, doubles)
    whole, written = backend.seen[:2], backend.seen[2:]
    assert [one.params for one in whole] == [one.params for one in written]
    assert [(one.priority, one.max_nodes) for one in written] == [(1, 3)] * 2
    for value in (5.5, 1e300, True, "5"):
        response = await client.post(PATHS[endpoint], json=BODIES[endpoint] | {"max_tokens": value})
        assert error_of(response, 400)["param"] == "max_tokens"


async def test_an_empty_prompt_is_the_token_that_begins_every_text(
    client: AsyncClient, backend: ScriptedBackend
) -> None:
    await answer_to(client, "completions", {"prompt": ["", "x"]})
    bos = backend.tokenizer.bos_token_id
    assert [request.prompt[0] for request in backend.seen] == [bos, bos]
    assert backend.seen[0].prompt == [bos]
    await answer_to(client, "completions", {"prompt": "x", "add_special_tokens": False})
    assert [bos, *backend.seen[2].prompt] == backend.seen[1].prompt


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_take_the_stops_and_biases_of_chats(
    client: AsyncClient, backend: ScriptedBackend, stream: bool
) -> None:
    fields = {"stop": ["STOP"], "logit_bias": {"7": 1}, "include_stop_str_in_output": True, "stream": stream}
    response = await client.post(PATHS["responses"], json=BODIES["responses"] | fields)
    assert backend.seen[0].params.logit_bias == {7: 1.0}
    assert "and the river keeps running over the quiet town. STOP" in response.text
    assert "later" not in response.text


async def test_neutral_fields_within_a_field_are_accepted(client: AsyncClient, backend: ScriptedBackend) -> None:
    hint = {"prompt_cache_breakpoint": {"mode": "explicit"}, "cache_control": None}
    parts = [{"type": "text", "text": text} | hint for text in ("a", "b")]
    tool: dict[str, Any] = {"type": "function", "name": "f", "parameters": {}, "defer_loading": False, "async": None}
    await answer_to(client, "chat", {"messages": [{"role": "user", "content": parts}]})
    assert "a\nb" in backend.tokenizer.decode(backend.seen[0].prompt)
    await answer_to(client, "responses", {"tools": [tool], "tool_choice": "none"})
    response = await client.post(PATHS["responses"], json=BODIES["responses"] | {"tools": [tool | {"async": True}]})
    assert error_of(response, 400)["param"] == "tools[0].async"
