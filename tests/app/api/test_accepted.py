"""Fields without influence on a text are accepted; fields about the form of input and output have their effect."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from httpx import AsyncClient

from tests.app.conftest import ScriptedBackend, chunks_of

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
TEXT = {"model": "tiny", "prompt": "hello", "temperature": 0}
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
BODIES = pytest.mark.parametrize(("path", "body"), [(CHAT_PATH, CHAT), (TEXT_PATH, TEXT)], ids=["chat", "text"])
IDLE = {
    "store": True,
    "metadata": {"run": "7"},
    "safety_identifier": "someone",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "service_tier": "flex",
    "user": "someone",
}


async def post(client: AsyncClient, path: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = await client.post(path, json=body | fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


def text_of(choice: dict[str, Any]) -> str:
    """The text of a choice of any form."""
    return choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""


@BODIES
async def test_fields_without_any_effect_are_accepted(client: AsyncClient, path: str, body: dict[str, Any]) -> None:
    plain = await post(client, path, body)
    assert (await post(client, path, body, **IDLE)).keys() == plain.keys()
    for name, value in (IDLE | ({"best_of": 1} if path == TEXT_PATH else {"tool_choice": "none"})).items():
        assert (await post(client, path, body, **{name: value}))["choices"] == plain["choices"]


@BODIES
async def test_continuous_usage_is_in_every_chunk(client: AsyncClient, path: str, body: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = chunks_of(await client.post(path, json=body | {"stream": True, "stream_options": options}))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {chunks[-1]["usage"]["prompt_tokens"]}
    assert chunks[-1]["choices"] == []
    assert chunks[-2]["usage"] == chunks[-1]["usage"]


@BODIES
async def test_obfuscation_pads_chunks_to_few_sizes(client: AsyncClient, path: str, body: dict[str, Any]) -> None:
    async def stream(is_padded: bool) -> httpx.Response:
        return await client.post(
            path, json=body | {"stream": True, "stream_options": {"include_obfuscation": is_padded}}
        )

    padded = await stream(True)
    sizes = {len(line.encode()) for line in padded.text.split("\n\n") if '"finish_reason":null' in line}
    assert len({size % 64 for size in sizes}) == 1
    for chunk, plain in zip(chunks_of(padded), chunks_of(await stream(False)), strict=True):
        assert 64 <= len(chunk.pop("obfuscation")) < 128
        [choice], [plain_choice] = chunk["choices"] or [{}], plain["choices"] or [{}]
        for name in ("text", "delta", "finish_reason"):
            assert choice.get(name) == plain_choice.get(name)


@BODIES
@pytest.mark.parametrize("stream", [False, True])
async def test_include_stop_str_in_output_keeps_the_stop_string(
    client: AsyncClient, backend: ScriptedBackend, path: str, body: dict[str, Any], stream: bool
) -> None:
    fields = {"stop": ["STOP"], "include_stop_str_in_output": True, "stream": stream}
    response = await client.post(path, json=body | fields)
    choices = [chunk["choices"][0] for chunk in (chunks_of(response) if stream else [response.json()])]
    assert "".join(map(text_of, choices)) == backend.answer[: backend.answer.index("STOP") + 4]
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "STOP")


async def test_the_text_of_a_stop_id_is_kept_only_on_request(client: AsyncClient, backend: ScriptedBackend) -> None:
    ids = backend.tokenizer.encode(backend.answer, add_special_tokens=False)
    end = ids.index(ids[4])
    for is_kept in (False, True):
        fields = {"stop_token_ids": [ids[4]], "ignore_eos": True, "include_stop_str_in_output": is_kept}
        answer = await post(client, TEXT_PATH, TEXT, **fields)
        [choice] = answer["choices"]
        assert choice["text"] == backend.tokenizer.decode(ids[: end + is_kept])
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ids[4])
        assert answer["usage"]["completion_tokens"] == end + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_special_tokens_are_shown_on_request(client: AsyncClient, backend: ScriptedBackend, stream: bool) -> None:
    backend.answer = "a<|user|>b"
    for skips, text in ((True, "ab"), (False, "a<|user|>b")):
        response = await client.post(TEXT_PATH, json=TEXT | {"stream": stream, "skip_special_tokens": skips})
        chunks = chunks_of(response) if stream else [response.json()]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


async def test_truncate_prompt_tokens_keeps_the_end_of_a_prompt(client: AsyncClient, backend: ScriptedBackend) -> None:
    prompt = list(range(5, 105))
    await post(client, TEXT_PATH, TEXT, prompt=prompt, truncate_prompt_tokens=7)
    await post(client, TEXT_PATH, TEXT, prompt=prompt, truncate_prompt_tokens=2**31 - 1)
    await post(client, TEXT_PATH, TEXT, prompt=[5] * 100 + prompt * 3, truncate_prompt_tokens=-1, max_tokens=56)
    await post(client, CHAT_PATH, CHAT, truncate_prompt_tokens=3)
    whole = backend.tokenizer.encode("<|bos|><|user|>hello<|end|><|assistant|>", add_special_tokens=False)
    expected = [prompt[-7:], prompt, (prompt * 3)[-200:], whole[-3:]]
    assert [request.prompt for request in backend.seen] == expected
    echo = await post(client, TEXT_PATH, TEXT, prompt="the quick fox", echo=True, truncate_prompt_tokens=3)
    assert echo["choices"][0]["text"] == backend.tokenizer.decode(backend.seen[-1].prompt) + backend.answer


async def test_allowed_ids_and_bad_words_reach_the_backend(client: AsyncClient, backend: ScriptedBackend) -> None:
    await post(client, TEXT_PATH, TEXT, allowed_token_ids=[7, 5, 7], bad_words=["fox", " river"])
    params = backend.seen[0].params
    assert params.allowed_ids == (7, 5)
    texts = ("fox", " fox", "river", " river")
    assert {*params.bad_words} <= {tuple(backend.tokenizer.encode(text, add_special_tokens=False)) for text in texts}
    assert {backend.tokenizer.decode(word).strip() for word in params.bad_words} == {"fox", "river"}


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_before_its_text(
    client: AsyncClient, backend: ScriptedBackend, stream: bool
) -> None:
    ids = backend.tokenizer.encode("the fox", add_special_tokens=False)
    for prompt, texts in ((["one ", "two "], ["one ", "two "]), ([ids, ids[:1]], ["the fox", "t"])):
        response = await client.post(TEXT_PATH, json=TEXT | {"prompt": prompt, "echo": True, "n": 2, "stream": stream})
        found = [""] * 4
        for chunk in chunks_of(response) if stream else [response.json()]:
            for choice in chunk["choices"]:
                found[choice["index"]] += choice["text"]
        assert found[::2] == found[1::2] == [text + backend.answer for text in texts]


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_count_only_after_min_tokens(
    client: AsyncClient, backend: ScriptedBackend, stream: bool
) -> None:
    backend.answer = "one STOP two STOP three"
    ids = backend.tokenizer.encode(backend.answer, add_special_tokens=False)
    texts = [backend.tokenizer.decode(ids[:n]) for n in range(len(ids) + 1)]
    first, second = (next(n for n, text in enumerate(texts) if text.count("STOP") == count) for count in (1, 2))
    for min_tokens, end in (
        (0, "one "),
        (first - 1, "one "),
        (first, "one STOP two "),
        (second - 1, "one STOP two "),
        (second, backend.answer),
    ):
        fields = {"stop": ["STOP"], "min_tokens": min_tokens, "stream": stream}
        response = await client.post(TEXT_PATH, json=TEXT | fields)
        choices = [chunk["choices"][0] for chunk in (chunks_of(response) if stream else [response.json()])]
        assert "".join(map(text_of, choices)) == end
        assert choices[-1]["stop_reason"] == (None if end == backend.answer else "STOP")


async def test_an_echo_alone_has_no_generated_tokens(client: AsyncClient, backend: ScriptedBackend) -> None:
    body = TEXT | {"prompt": ["one ", "two "], "echo": True, "max_tokens": 0}
    chunks = chunks_of(await client.post(TEXT_PATH, json=body | {"stream": True}))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == body["prompt"]
    answer = await post(client, TEXT_PATH, body)
    assert answer["usage"]["completion_tokens"] == 0
    for choice, prompt in zip(answer["choices"], body["prompt"], strict=True):
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (prompt, "length", None)
    assert {request.params.max_tokens for request in backend.seen} == {1}
