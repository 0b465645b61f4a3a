"""Fields that cannot change a text are taken, and fields that say how text goes in and out do what they say."""

from __future__ import annotations

import json

import httpx
import openai
import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
TEXT = {"model": "tiny", "prompt": "hello", "temperature": 0}
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
BODIES = pytest.mark.parametrize(("path", "body"), [(CHAT_PATH, CHAT), (TEXT_PATH, TEXT)])
IDLE = [
    {"store": True},
    {"metadata": {"run": "7"}},
    {"safety_identifier": "someone"},
    {"prompt_cache_key": "k"},
    {"prompt_cache_retention": "24h"},
    {"service_tier": "flex"},
    {"user": "someone"},
]


async def post(client: httpx.AsyncClient, path: str, body: dict, **fields) -> dict:
    response = await client.post(path, json=body | fields)
    assert response.status_code == 200, response.text
    return response.json()


def chunks_of(response: httpx.Response) -> list[dict]:
    lines = response.text.split("\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@BODIES
@pytest.mark.parametrize("idle", IDLE, ids=lambda idle: next(iter(idle)))
async def test_what_cannot_change_a_text_is_taken(client, path, body, idle) -> None:
    plain, told = await post(client, path, body), await post(client, path, body, **idle)
    assert told["choices"] == plain["choices"]
    assert told.keys() == plain.keys()


async def test_one_of_one_is_taken(client) -> None:
    assert (await post(client, TEXT_PATH, TEXT, best_of=1))["choices"] == (await post(client, TEXT_PATH, TEXT))[
        "choices"
    ]


def test_the_official_client_sends_them_all(server: str, backend) -> None:
    with openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        fields = {name: value for idle in IDLE for name, value in idle.items()}
        answer = client.chat.completions.create(**CHAT, **fields, tool_choice="none", parallel_tool_calls=True)
    assert answer.choices[0].message.content == backend.answer


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"store": "yes"}, "store"),
        ({"service_tier": "fast"}, "service_tier"),
        ({"prompt_cache_key": "x" * 257}, "prompt_cache_key"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [400]}, "allowed_token_ids"),
        ({"allowed_token_ids": [5] * 1025}, "allowed_token_ids"),
        ({"allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": ["x" * 61]}, "bad_words"),
        ({"bad_words": ["\U0001f98a" * 30]}, "bad_words"),
        ({"bad_words": ["x"] * 65}, "bad_words"),
        ({"bad_words": "x"}, "bad_words"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ],
)
async def test_their_bounds_are_named(client, fields, param) -> None:
    response = await client.post(TEXT_PATH, json=TEXT | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@BODIES
async def test_usage_so_far_is_in_every_chunk_that_wants_it(client, path, body) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = chunks_of(await client.post(path, json=body | {"stream": True, "stream_options": options}))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert all(chunk["usage"]["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"] for chunk in chunks)
    assert chunks[-1]["choices"] == []
    assert chunks[-2]["usage"] == chunks[-1]["usage"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT_PATH, {"prompt": "hello", "max_tokens": 9, "repetition_penalty": 1.0, "logprobs": None}),
        (
            CHAT_PATH,
            {
                "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
                "max_completion_tokens": 9,
            },
        ),
    ],
)
async def test_vllm_bench_serve_gets_what_it_reads(client, path, body) -> None:
    """It takes the first chunk with choices for the first token, and counts of tokens from a chunk without any."""
    [card, *_] = (await client.get("/v1/models")).json()["data"]
    sent = body | {"model": card["id"], "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    response = await client.post(path, json=sent | {"temperature": 0.0}, headers={"x-request-id": "bench-1"})
    assert response.status_code == 200, response.text
    *chunks, last = chunks_of(response)
    texts = [choice.get("text") or choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"][:1]]
    assert len(texts) == len(chunks)
    assert texts[0]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 9
    assert last["usage"]["prompt_tokens"] > 0
    assert card["root"]


@BODIES
async def test_obfuscation_pads_every_chunk_to_the_same_sizes(client, path, body) -> None:
    async def stream(**options) -> httpx.Response:
        return await client.post(path, json=body | {"stream": True, "stream_options": options})

    padded = await stream(include_obfuscation=True)
    sizes = {len(line.encode()) for line in padded.text.split("\n\n") if '"finish_reason":null' in line}
    assert len({size % 64 for size in sizes}) == 1
    for chunk, plain in zip(chunks_of(padded), chunks_of(await stream(include_obfuscation=False)), strict=True):
        assert 64 <= len(chunk.pop("obfuscation")) < 128
        [padded_choice], [choice] = chunk["choices"] or [{}], plain["choices"] or [{}]
        names = {"text", "delta", "finish_reason"}
        assert {k: v for k, v in padded_choice.items() if k in names} == {k: v for k, v in choice.items() if k in names}


@BODIES
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_can_stay_in_the_text(client, backend, path, body, stream) -> None:
    fields = {"stop": ["STOP"], "include_stop_str_in_output": True, "stream": stream}
    response = await client.post(path, json=body | fields)
    choices = [chunk["choices"][0] for chunk in (chunks_of(response) if stream else [response.json()])]
    texts = [
        choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") for choice in choices
    ]
    assert "".join(text or "" for text in texts) == backend.answer[: backend.answer.index("STOP") + 4]
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "STOP")


async def test_the_text_of_a_stop_id_can_stay_too(client, backend) -> None:
    ids = backend.tokenizer.encode(backend.answer, add_special_tokens=False)
    fields = {"stop_token_ids": [ids[4]], "ignore_eos": True}
    end = ids.index(ids[4])
    plain = await post(client, TEXT_PATH, TEXT, **fields)
    kept = await post(client, TEXT_PATH, TEXT, **fields, include_stop_str_in_output=True)
    assert plain["choices"][0]["text"] == backend.tokenizer.decode(ids[:end])
    assert kept["choices"][0]["text"] == backend.tokenizer.decode(ids[: end + 1])


@pytest.mark.parametrize("stream", [False, True])
async def test_special_tokens_can_be_shown(client, backend, stream) -> None:
    backend.answer = "a<|user|>b"
    for skips, text in ((True, "ab"), (False, "a<|user|>b")):
        response = await client.post(TEXT_PATH, json=TEXT | {"stream": stream, "skip_special_tokens": skips})
        chunks = chunks_of(response) if stream else [response.json()]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


async def test_a_prompt_can_be_cut_to_its_end(client, backend) -> None:
    prompt = list(range(5, 105))
    await post(client, TEXT_PATH, TEXT, prompt=prompt, truncate_prompt_tokens=7)
    await post(client, TEXT_PATH, TEXT, prompt=prompt, truncate_prompt_tokens=2**31 - 1)
    await post(client, TEXT_PATH, TEXT, prompt=[5] * 100 + prompt * 3, truncate_prompt_tokens=-1, max_tokens=56)
    await post(client, CHAT_PATH, CHAT, truncate_prompt_tokens=3)
    whole = backend.tokenizer.encode("<|bos|><|user|>hello<|end|><|assistant|>", add_special_tokens=False)
    expected = [prompt[-7:], prompt, (prompt * 3)[-200:], whole[-3:]]
    assert [request.prompt for request in backend.seen] == expected


async def test_allowed_ids_and_bad_words_reach_the_target(client, backend) -> None:
    await post(client, TEXT_PATH, TEXT, allowed_token_ids=[7, 5, 7], bad_words=["fox", " river"])
    params = backend.seen[0].params
    assert params.allowed_ids == (7, 5)
    expected = {
        tuple(backend.tokenizer.encode(text, add_special_tokens=False)) for text in ("fox", " fox", "river", " river")
    }
    assert {*params.bad_words} <= expected
    assert {backend.tokenizer.decode(word).strip() for word in params.bad_words} == {"fox", "river"}


async def test_a_bad_word_that_is_an_only_allowed_token_is_refused(client, backend) -> None:
    [token] = backend.tokenizer.encode("a", add_special_tokens=False)
    response = await client.post(TEXT_PATH, json=TEXT | {"allowed_token_ids": [token], "bad_words": ["a"]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "allowed_token_ids")


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_every_prompt_in_front_of_its_texts(client, backend, stream) -> None:
    ids = backend.tokenizer.encode("the fox", add_special_tokens=False)
    for prompt, texts in ((["one ", "two "], ["one ", "two "]), ([ids, ids[:1]], ["the fox", "t"])):
        body = TEXT | {"prompt": prompt, "echo": True, "n": 2, "stream": stream}
        response = await client.post(TEXT_PATH, json=body)
        found = [""] * 4
        for chunk in chunks_of(response) if stream else [response.json()]:
            for choice in chunk["choices"]:
                found[choice["index"]] += choice["text"]
        assert found[::2] == found[1::2] == [text + backend.answer for text in texts]


async def test_an_echo_is_of_the_prompt_that_was_read(client, backend) -> None:
    fields = {"echo": True, "truncate_prompt_tokens": 3}
    text = (await post(client, TEXT_PATH, TEXT, prompt="the quick fox", **fields))["choices"][0]["text"]
    assert text == backend.tokenizer.decode(backend.seen[-1].prompt) + backend.answer
