"""The official client against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
TEXT = {"model": "tiny", "prompt": "hello", "temperature": 0}


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_chat_whole_and_streamed_are_the_same_text(client, backend) -> None:
    whole = client.chat.completions.create(**CHAT)
    assert whole.choices[0].message.content == backend.answer
    assert (whole.choices[0].finish_reason, whole.choices[0].message.role) == ("stop", "assistant")
    with client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == backend.answer
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].metrics == whole.metrics
    assert {c.id for c in chunks} == {chunks[0].id}
    n_tokens = len(backend.ids_for(backend.seen[0].params))
    assert whole.usage.completion_tokens == n_tokens  # EOS counts
    assert whole.usage.total_tokens == n_tokens + whole.usage.prompt_tokens


def test_a_stream_without_usage_carries_its_metrics_on_the_final_chunk(client) -> None:
    whole = client.chat.completions.create(**CHAT)
    with client.chat.completions.create(**CHAT, stream=True) as stream:
        chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].metrics == whole.metrics
    assert all(c.usage is None for c in chunks)
    figures = whole.metrics["speculative_decoding"]
    steps, accepted = figures["num_spec_steps"], figures["num_accepted_draft_tokens"]
    assert figures["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
    assert figures["draft_acceptance_rate"] == pytest.approx(accepted / (4 * steps))
    counts = {"drafted": 4 * steps, "accepted": accepted, "proposed": 4 * steps}
    counts |= {"proposed_accepted": accepted, "sole_accepted": accepted}
    assert figures["by_source"] == {"pld": counts}
    assert whole.usage.completion_tokens == 1 + steps + accepted
    check_histogram(figures, limit=4)


def check_histogram(figures, limit) -> None:
    """As vLLM documents it: dense, by accepted drafted tokens, each step once."""
    histogram = figures["acceptance_histogram"]
    assert figures["num_spec_tokens"] == limit
    assert len(histogram) == limit + 1
    assert sum(histogram) == figures["num_spec_steps"]
    assert sum(j * n for j, n in enumerate(histogram)) == figures["num_accepted_draft_tokens"]


@pytest.mark.parametrize(("speculative", "limit"), [({"max_nodes": 9}, 9), ({"method": "pld"}, 4)])
def test_the_histogram_of_accepted_tokens_is_as_long_as_a_draft_may_be(client, speculative, limit) -> None:
    for more in ({}, {"n": 2, "temperature": 1.0}, {"stop": "river"}):  # the engine's figures, and the edge's
        answer = client.chat.completions.create(**CHAT | more, extra_body={"speculative": speculative})
        check_histogram(answer.metrics["speculative_decoding"], limit)


def test_text_completions_take_several_prompts_and_choices(client, backend) -> None:
    wanted = TEXT | {"prompt": ["one", "two words"], "n": 2, "temperature": 1.0, "seed": 3}
    whole = client.completions.create(**wanted)
    assert [c.index for c in whole.choices] == [0, 1, 2, 3]
    texts = [c.text for c in whole.choices]
    assert texts[0] == texts[2] != texts[1] == texts[3]  # the script depends on seed and choice only
    with client.completions.create(**wanted, stream=True) as stream:
        streamed = ["", "", "", ""]
        for chunk in stream:
            streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    assert whole.usage.prompt_tokens == sum(len(one.prompt) for one in backend.seen[:4] if one.params.choice == 0)


def test_chat_choices_differ_and_the_first_equals_a_single_one(client) -> None:
    sampled = CHAT | {"temperature": 1.0, "seed": 11}
    two = client.chat.completions.create(**sampled, n=2)
    one = client.chat.completions.create(**sampled)
    assert two.choices[0].message.content == one.choices[0].message.content != two.choices[1].message.content
    assert two.usage.prompt_tokens == one.usage.prompt_tokens
    for answer in (one, two):  # what was in the cache counts as often as the prompt does
        assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, -(2**63)])
def test_any_64_bit_seed_is_taken_and_returned(client, backend, seed: int) -> None:
    assert client.chat.completions.create(**CHAT, seed=seed).seed == seed
    assert backend.seen[-1].params.seed == seed % 2**64


def test_a_missing_seed_is_drawn_once_and_reproduces_the_text(client) -> None:
    sampled = CHAT | {"temperature": 1.0}
    first = client.chat.completions.create(**sampled)
    again = client.chat.completions.create(**sampled, seed=first.seed)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert client.chat.completions.create(**sampled).seed != first.seed
    with client.chat.completions.create(**sampled, stream=True) as stream:
        assert len({chunk.seed for chunk in stream}) == 1


def test_chat_logprobs_spell_the_text_in_bytes(client, backend) -> None:
    answer = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2, max_tokens=30)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 30 == answer.usage.completion_tokens
    text = bytes(b for entry in entries for b in entry.bytes).decode()
    assert text == answer.choices[0].message.content
    assert backend.answer.startswith(text)
    assert entries[0].top_logprobs[0].token == entries[0].token
    assert [t.logprob for t in entries[0].top_logprobs] == [-0.5, -1.5]
    assert any(entry.token.startswith("bytes:\\x") for entry in entries)  # parts of the fox
    with client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2, max_tokens=30, stream=True) as stream:
        streamed = [e for c in stream for e in c.choices[0].logprobs.content]
    assert streamed == entries


def test_completion_logprobs_have_offsets_into_the_text(client) -> None:
    choice = client.completions.create(**TEXT, logprobs=1, max_tokens=8).choices[0]
    assert len(choice.logprobs.tokens) == 8
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[offset:].startswith(token)
    assert choice.logprobs.top_logprobs[0] == {choice.logprobs.tokens[0]: -0.5}


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_the_text_and_cancels_the_rest(client, backend, stream: bool) -> None:
    wanted = CHAT | {"stop": ["nowhere", "STOP"], "stream": stream}
    answer = client.chat.completions.create(**wanted)
    if stream:
        chunks = list(answer)
        text, last = "".join(c.choices[0].delta.content for c in chunks), chunks[-1]
    else:
        text, last = answer.choices[0].message.content, answer
    before = backend.answer[: backend.answer.index("STOP")]
    assert (text, last.choices[0].finish_reason, last.choices[0].stop_reason) == (before, "stop", "STOP")
    assert len(backend.cancelled) == 1
    figures = last.metrics["speculative_decoding"]
    assert figures["num_draft_tokens"] == 4 * figures["num_spec_steps"] > 0
    if not stream:
        used = backend.ids_for(backend.seen[0].params)[: answer.usage.completion_tokens]
        assert "STOP" in backend.tokenizer.decode(used)
        assert "STOP" not in backend.tokenizer.decode(used[:-1])


def test_token_ids_come_back_when_asked_for(client, backend) -> None:
    extra = {"return_token_ids": True}
    chat = client.chat.completions.create(**CHAT, extra_body=extra)
    assert chat.choices[0].token_ids == backend.ids_for(backend.seen[0].params)
    assert chat.prompt_token_ids == backend.seen[0].prompt
    with client.chat.completions.create(**CHAT, extra_body=extra, stream=True) as stream:
        chunks = list(stream)
    assert [t for c in chunks for t in c.choices[0].token_ids] == chat.choices[0].token_ids
    assert chunks[0].prompt_token_ids == chat.prompt_token_ids
    text = client.completions.create(**TEXT, extra_body=extra)
    assert text.choices[0].prompt_token_ids == backend.seen[-1].prompt
    two = client.completions.create(**TEXT | {"prompt": ["one", "another"], "n": 2}, extra_body=extra)
    asked = [request.prompt for request in backend.seen[-4:]]
    assert sorted(map(tuple, asked)) == sorted(tuple(choice.prompt_token_ids) for choice in two.choices)
    assert two.choices[0].prompt_token_ids == two.choices[1].prompt_token_ids != two.choices[2].prompt_token_ids


def test_models_are_listed_by_name_and_alias(client) -> None:
    assert [m.id for m in client.models.list()] == ["tiny", "org/alias"]
    assert client.models.retrieve("org/alias").max_model_len == 256
    with pytest.raises(openai.NotFoundError) as info:
        client.models.retrieve("gpt-9")
    assert info.value.code == "model_not_found"


def test_a_failure_in_a_stream_raises_in_the_client(client, backend) -> None:
    backend.fails_after = 3
    with client.chat.completions.create(**CHAT, stream=True) as stream:
        first = next(stream)
        with pytest.raises(openai.APIError) as info:
            list(stream)
    assert first.choices[0].delta.role == "assistant"
    assert info.value.code == "target_lost"


async def test_the_asynchronous_client_streams_too(server: str, backend) -> None:
    client = openai.AsyncOpenAI(base_url=server + "/v1", api_key="none", timeout=120)
    async with client, await client.chat.completions.create(**CHAT, stream=True) as stream:
        text = "".join([c.choices[0].delta.content or "" async for c in stream])
    assert text == backend.answer
