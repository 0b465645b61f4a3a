"""Log-probabilities of prompts in vLLM's form and in OpenAI's echo, from a real engine."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import httpx
import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from app.api.answers import logprobs
from app.api.answers.logprobs import TokenTexts, prompt_logprobs
from app.api.answers.stream_writer import StreamWriter
from app.api.application import create_app
from app.api.choice import Choice
from app.api.http import Api
from app.api.piece import Piece
from app.api.requests.echoes import MAX_LOGPROBS_OF_PROMPTS, OFFSET_COST, check_logprobs_of_prompts, echoes
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest
from app.api.service import Settings
from app.inputs.tokenizers import load_tokenizer
from engine.errors import RequestError
from engine.events import TokenLogprob
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.support.engine_backend import over_engine

PROMPT = "Snow falls on the quiet town, größer than 数 lines."
TEXT = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 4}


@torch.no_grad()
def logits_of(checkpoint: Path, ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return model(torch.tensor([ids])).logits[0].log_softmax(-1)


async def test_an_echo_has_the_log_probabilities_of_the_whole_text(tiny_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint)
    async with over_engine(tiny_checkpoint, tokenizer) as client:
        body = TEXT | {"echo": True, "logprobs": 2, "return_token_ids": True}
        [choice] = (await client.post("/v1/completions", json=body)).json()["choices"]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    table, told = logits_of(tiny_checkpoint, ids), choice["logprobs"]
    assert choice["text"].startswith(PROMPT)
    assert {len(values) for values in told.values()} == {len(ids)}
    assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
    wanted = [table[i, token].item() for i, token in enumerate(ids[1:])]
    assert told["token_logprobs"][1:] == pytest.approx(wanted, abs=2e-3)
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        if not token.startswith("bytes:") and token != tokenizer.bos_token:
            assert choice["text"][offset:].startswith(token)
    for row, tops in zip(table, told["top_logprobs"][1:], strict=False):
        assert max(tops.values()) == pytest.approx(row.max().item(), abs=2e-3)
        assert len(tops) in (2, 3)


async def test_prompt_logprobs_are_told_by_id_as_vllm_does(tiny_checkpoint: Path) -> None:
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        body = TEXT | {"prompt_logprobs": 2, "return_token_ids": True}
        [choice] = (await client.post("/v1/completions", json=body)).json()["choices"]
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "prompt_logprobs": 0}
        answer = (await client.post("/v1/chat/completions", json=chat | {"return_token_ids": True})).json()
    ids = choice["prompt_token_ids"]
    table = logits_of(tiny_checkpoint, ids)
    assert choice["prompt_logprobs"][0] is None
    assert choice["logprobs"] is None
    assert len(choice["prompt_logprobs"]) == len(ids)
    for row, token, told in zip(table, ids[1:], choice["prompt_logprobs"][1:], strict=False):
        best = row.topk(2).indices.tolist()
        assert set(told) == {str(i) for i in (token, *best)}
        assert told[str(token)]["logprob"] == pytest.approx(row[token].item(), abs=2e-3)
        assert [told[str(i)]["rank"] for i in best] == [1, 2]
    assert [told and set(told) for told in answer["prompt_logprobs"]] == [
        None,
        *({str(token)} for token in answer["prompt_token_ids"][1:]),
    ]


async def test_every_choice_of_a_prompt_has_that_of_the_prompt(client, backend) -> None:
    body = TEXT | {"prompt": ["one two", "three"], "n": 2, "prompt_logprobs": 1, "echo": True, "logprobs": 0}
    choices = (await client.post("/v1/completions", json=body)).json()["choices"]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"] != choices[2]["prompt_logprobs"]
    assert choices[2]["prompt_logprobs"] == choices[3]["prompt_logprobs"]
    assert [one.params.prompt_logprobs for one in backend.seen] == [1, None, 1, None]  # scored once
    assert {len(one["logprobs"]["tokens"]) - len(one["prompt_logprobs"]) for one in choices} == {4}
    assert all(len(tops) == 1 for one in choices for tops in one["logprobs"]["top_logprobs"][1:])


def test_a_token_has_the_rank_that_it_has_among_all_that_were_told(tokenizer) -> None:
    texts = TokenTexts(tokenizer)
    entry = TokenLogprob(7, -3.0, ((5, -1.0), (6, -2.0), (7, -3.0)))
    unknown = TokenLogprob(9, float("-inf"), ((5, -1.0),))
    assert msgspec.json.decode(prompt_logprobs([entry, unknown], 1, texts)) == [
        None,
        {
            "7": {"logprob": -3.0, "rank": 3, "decoded_token": texts[7][0]},
            "5": {"logprob": -1.0, "rank": 1, "decoded_token": texts[5][0]},
        },
        {
            "9": {"logprob": -9999.0, "rank": None, "decoded_token": texts[9][0]},
            "5": {"logprob": -1.0, "rank": 1, "decoded_token": texts[5][0]},
        },
    ]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_log_probabilities_of_a_prompt_are_written_once_whatever_n_is(
    client, backend, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = logprobs._known, []
    monkeypatch.setattr(logprobs, "_known", lambda entry, *more: written.append(entry) or write(entry, *more))
    text = {"prompt": ["one two", "three"], "echo": True, "logprobs": 1}
    body = text if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    assert (await client.post(path, json=body | {"model": "tiny", "n": 5, "prompt_logprobs": 2})).status_code == 200
    prompts = [request.prompt for request in backend.seen if request.params.choice == 0]
    assert len(written) == sum(len(prompt) - 1 for prompt in prompts)


def test_the_text_of_ids_is_made_once_whatever_n_is(tokenizer) -> None:
    prompts = [tokenizer.encode(text) for text in ("one two", "three")]
    body = CompletionRequest(model="tiny", prompt=prompts, n=3, echo=True)
    begun = echoes(body, [Request(prompt, SamplingParams()) for prompt in prompts for _ in range(3)], tokenizer)
    assert begun == ["one two"] * 3 + ["three"] * 3
    assert len({id(text) for text in begun}) == 2


async def test_an_answer_with_many_log_probabilities_is_written_in_a_thread(
    client, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, is_here = StreamWriter.whole, []

    def noted(writer: StreamWriter, done: Sequence[tuple[Choice, Piece]]) -> bytes:
        is_here.append(threading.get_ident() == loops)
        return whole(writer, done)

    loops = threading.get_ident()
    monkeypatch.setattr(StreamWriter, "whole", noted)
    body = {"model": "tiny", "prompt": [5] * 100, "max_tokens": 100}
    for more in ({}, {"prompt_logprobs": 0}, {"prompt_logprobs": 20}, {"logprobs": 0}, {"logprobs": 20}):
        assert (await client.post("/v1/completions", json=body | more)).status_code == 200
    assert is_here == [True, True, False, True, False]


def completion(n_tokens: int, **fields: object) -> tuple[CompletionRequest, list[list[int]]]:
    return CompletionRequest(model="tiny", prompt="x", **fields), [[5] * n_tokens]


MOST = MAX_LOGPROBS_OF_PROMPTS
BOUNDS = {
    "alternatives": (MOST // 21, {"prompt_logprobs": 20}),
    "choices": (MOST // 32, {"prompt_logprobs": 1, "n": 16}),
    "an echo": (MOST // (2 + OFFSET_COST), {"echo": True, "logprobs": 1}),
    "both": (MOST // (5 + OFFSET_COST), {"echo": True, "logprobs": 1, "prompt_logprobs": 2}),
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_an_answer_tells_so_many_log_probabilities_of_prompts_and_no_more(kind: str) -> None:
    n_tokens, fields = BOUNDS[kind]
    check_logprobs_of_prompts(*completion(n_tokens, **fields))
    with pytest.raises(RequestError, match="must be at most 1000000") as refused:
        check_logprobs_of_prompts(*completion(n_tokens + 1, **fields))
    assert refused.value.param == ("prompt_logprobs" if "prompt_logprobs" in fields else "echo")


def test_long_prompts_may_have_log_probabilities() -> None:
    check_logprobs_of_prompts(*completion(131_072, prompt_logprobs=1))
    check_logprobs_of_prompts(*completion(131_072, echo=True, logprobs=1))
    check_logprobs_of_prompts(*completion(131_072, logprobs=20, n=16))  # none of the prompt
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "n": 16, "prompt_logprobs": 1}
    check_logprobs_of_prompts(ChatCompletionRequest(**chat), [[5] * 131_072])  # told once


async def test_too_many_log_probabilities_are_refused(backend) -> None:
    backend.model_card = msgspec.structs.replace(backend.model_card, max_model_len=100_000)
    app = create_app(Api(backend, backend.tokenizer, Settings()))
    body = {"model": "tiny", "prompt": [5] * 58_000, "prompt_logprobs": 20, "max_tokens": 1}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge") as client:
        response = await client.post("/v1/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "prompt_logprobs")
    assert "21 log-probabilities of each of 58000 tokens" in error["message"]
    assert backend.seen == []
