"""The official client with a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.app.conftest import ScriptedBackend
from tests.support.waiting import LIMIT_S

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hello", "temperature": 0}


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0, timeout=LIMIT_S) as client:
        yield client


def streamed(client: openai.OpenAI, **fields: Any) -> list[Any]:
    with client.chat.completions.create(**CHAT | fields, stream=True) as stream:
        return list(stream)


def test_a_chat_is_the_same_whole_and_streamed(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    whole = client.chat.completions.create(**CHAT)
    assert whole.choices[0].message.content == backend.answer
    assert (whole.choices[0].finish_reason, whole.choices[0].message.role) == ("stop", "assistant")
    chunks = streamed(client, stream_options={"include_usage": True})
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == backend.answer
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert (chunks[-1].usage, chunks[-1].metrics) == (whole.usage, whole.metrics)
    assert {c.id for c in chunks} == {chunks[0].id}
    n_tokens = len(backend.ids_for(backend.seen[0].params))
    assert whole.usage.completion_tokens == n_tokens  # EOS counts
    assert whole.usage.total_tokens == n_tokens + whole.usage.prompt_tokens
    without_usage = streamed(client)
    assert without_usage[-1].choices[0].finish_reason == "stop"
    assert without_usage[-1].metrics == whole.metrics
    assert all(c.usage is None for c in without_usage)


@pytest.mark.parametrize("more", [{}, {"n": 2, "temperature": 1.0}, {"stop": "river"}], ids=str)
@pytest.mark.parametrize(("speculative", "limit"), [({"max_nodes": 9}, 9), ({"method": "pld"}, 4)])
def test_the_acceptance_histogram_is_dense_as_in_vllm(
    client: openai.OpenAI, speculative: dict[str, Any], limit: int, more: dict[str, Any]
) -> None:
    answer = client.chat.completions.create(**CHAT | more, extra_body={"speculative": speculative})
    figures = answer.metrics["speculative_decoding"]
    histogram = figures["acceptance_histogram"]
    assert figures["num_spec_tokens"] == limit
    assert len(histogram) == limit + 1
    assert sum(histogram) == figures["num_spec_steps"]
    assert sum(j * n for j, n in enumerate(histogram)) == figures["num_accepted_draft_tokens"]


def test_choices_differ_and_the_first_equals_a_single_one(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    several = TEXT | {"prompt": ["one", "two words"], "n": 2, "temperature": 1.0, "seed": 3}
    whole = client.completions.create(**several)
    texts = [choice.text for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert texts[0] == texts[2] != texts[1] == texts[3]  # the backend depends on seed and choice alone
    assert whole.usage.prompt_tokens == sum(len(one.prompt) for one in backend.seen if one.params.choice == 0)
    found = [""] * 4
    with client.completions.create(**several, stream=True) as stream:
        for chunk in stream:
            found[chunk.choices[0].index] += chunk.choices[0].text
    assert found == texts
    sampled = CHAT | {"temperature": 1.0, "seed": 11}
    two, one = client.chat.completions.create(**sampled, n=2), client.chat.completions.create(**sampled)
    assert two.choices[0].message.content == one.choices[0].message.content != two.choices[1].message.content
    for answer in (one, two):
        assert answer.usage.prompt_tokens == one.usage.prompt_tokens
        assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1


def test_a_seed_has_64_bits_and_a_missing_one_is_returned(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    for seed in (0, -1, 2**63, 2**64 - 1, -(2**63)):
        assert client.chat.completions.create(**CHAT, max_tokens=1, seed=seed).seed == seed
        assert backend.seen[-1].params.seed == seed % 2**64
    sampled = CHAT | {"temperature": 1.0}
    first = client.chat.completions.create(**sampled)
    again = client.chat.completions.create(**sampled, seed=first.seed)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert client.chat.completions.create(**sampled).seed != first.seed
    assert len({chunk.seed for chunk in streamed(client, temperature=1.0)}) == 1


def test_chat_logprobs_spell_the_text_in_bytes(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 30}
    answer = client.chat.completions.create(**CHAT, **fields)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 30 == answer.usage.completion_tokens
    text = bytes(b for entry in entries for b in entry.bytes).decode()
    assert text == answer.choices[0].message.content
    assert backend.answer.startswith(text)
    assert entries[0].top_logprobs[0].token == entries[0].token
    assert [t.logprob for t in entries[0].top_logprobs] == [-0.5, -1.5]
    assert any(entry.token.startswith("bytes:\\x") for entry in entries)  # parts of a character
    assert [e for c in streamed(client, **fields) for e in c.choices[0].logprobs.content] == entries


def test_a_stop_string_cuts_the_text_and_cancels_the_rest(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    stop = {"stop": ["nowhere", "STOP"]}
    whole, chunks = client.chat.completions.create(**CHAT, **stop), streamed(client, **stop)
    before = backend.answer[: backend.answer.index("STOP")]
    assert whole.choices[0].message.content == "".join(c.choices[0].delta.content for c in chunks) == before
    for last in (whole, chunks[-1]):
        assert (last.choices[0].finish_reason, last.choices[0].stop_reason) == ("stop", "STOP")
        figures = last.metrics["speculative_decoding"]
        assert figures["num_draft_tokens"] == 4 * figures["num_spec_steps"] > 0
    assert len(backend.cancelled) == 2
    used = backend.ids_for(backend.seen[0].params)[: whole.usage.completion_tokens]
    assert "STOP" in backend.tokenizer.decode(used)
    assert "STOP" not in backend.tokenizer.decode(used[:-1])


def test_token_ids_are_returned_on_request(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    extra = {"return_token_ids": True}
    chat = client.chat.completions.create(**CHAT, extra_body=extra)
    assert chat.choices[0].token_ids == backend.ids_for(backend.seen[0].params)
    assert chat.prompt_token_ids == backend.seen[0].prompt
    chunks = streamed(client, extra_body=extra)
    assert [t for c in chunks for t in c.choices[0].token_ids] == chat.choices[0].token_ids
    assert chunks[0].prompt_token_ids == chat.prompt_token_ids
    two = client.completions.create(**TEXT | {"prompt": ["one", "another"], "n": 2}, extra_body=extra)
    prompts = [backend.tokenizer.encode(text) for text in ("one", "one", "another", "another")]
    assert [choice.prompt_token_ids for choice in two.choices] == prompts


def test_models_are_listed_by_name_and_alias(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny", "org/alias"]
    assert client.models.retrieve("org/alias").max_model_len == 256
    with pytest.raises(openai.NotFoundError) as info:
        client.models.retrieve("gpt-9")
    assert info.value.code == "model_not_found"
