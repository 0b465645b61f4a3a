"""Log-probabilities of prompts in vLLM's form and in OpenAI's echo."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from httpx import AsyncClient
from transformers import AutoModelForCausalLM

from app.api.answers.completions import CompletionWriter
from app.api.choice import ChoiceDelta, CompletionChoice
from app.api.requests.grants import MAX_LOGPROBS_OF_PROMPTS, OFFSET_COST, check_logprobs_of_prompts
from app.api.requests.schemas import CompletionRequest
from app.inputs.tokenizers import load_tokenizer
from engine.errors import RequestError
from tests.app.api.engine_backend import over_engine
from tests.app.conftest import ScriptedBackend

PROMPT = "Snow falls on the quiet town, größer than 数 lines."
PATH = "/v1/completions"
TEXT = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 4, "return_token_ids": True}


@torch.no_grad()
def logprobs_of(checkpoint: Path, ids: list[int]) -> torch.Tensor:
    """Hugging Face's, one row a token."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    logprobs: torch.Tensor = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return logprobs


async def test_an_echo_has_the_log_probabilities_of_the_whole_text(tiny_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint)
    async with over_engine(tiny_checkpoint, tokenizer) as client:
        [choice] = (await client.post(PATH, json=TEXT | {"echo": True, "logprobs": 2})).json()["choices"]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    table, found = logprobs_of(tiny_checkpoint, ids), choice["logprobs"]
    assert choice["text"].startswith(PROMPT)
    assert {len(values) for values in found.values()} == {len(ids)}
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    expected = [table[i, token].item() for i, token in enumerate(ids[1:])]
    assert found["token_logprobs"][1:] == pytest.approx(expected, abs=2e-3)
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        if not token.startswith("bytes:") and token != tokenizer.bos_token:
            assert choice["text"][offset:].startswith(token)
    for row, tops in zip(table, found["top_logprobs"][1:], strict=False):
        assert max(tops.values()) == pytest.approx(row.max().item(), abs=2e-3)
        assert len(tops) in (2, 3)


@pytest.mark.parametrize("prompt", [PROMPT, ""])
async def test_an_echo_alone_has_the_log_probabilities_of_the_prompt(tiny_checkpoint: Path, prompt: str) -> None:
    body = TEXT | {"echo": True, "logprobs": 2, "prompt": prompt}
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        [written] = (await client.post(PATH, json=body)).json()["choices"]
        [alone] = (await client.post(PATH, json=body | {"max_tokens": 0})).json()["choices"]
    n = len(written["prompt_token_ids"])
    assert (alone["prompt_token_ids"], alone["token_ids"]) == (written["prompt_token_ids"], [])
    assert alone["logprobs"] == {name: values[:n] for name, values in written["logprobs"].items()}
    assert (alone["text"], alone["finish_reason"]) == (prompt, "length")


async def test_prompt_logprobs_are_keyed_by_token_id_as_in_vllm(tiny_checkpoint: Path) -> None:
    async with over_engine(tiny_checkpoint, load_tokenizer(tiny_checkpoint)) as client:
        [choice] = (await client.post(PATH, json=TEXT | {"prompt_logprobs": 2})).json()["choices"]
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "prompt_logprobs": 0}
        answer = (await client.post("/v1/chat/completions", json=chat | {"return_token_ids": True})).json()
    ids = choice["prompt_token_ids"]
    first, *rest = choice["prompt_logprobs"]
    assert (first, choice["logprobs"]) == (None, None)
    for row, token, found in zip(logprobs_of(tiny_checkpoint, ids)[:-1], ids[1:], rest, strict=True):
        best = row.topk(2).indices.tolist()
        assert set(found) == {str(i) for i in (token, *best)}
        assert found[str(token)]["logprob"] == pytest.approx(row[token].item(), abs=2e-3)
        assert [found[str(i)]["rank"] for i in best] == [1, 2]
    first, *rest = answer["prompt_logprobs"]
    assert first is None
    assert [set(found) for found in rest] == [{str(token)} for token in answer["prompt_token_ids"][1:]]


async def test_a_prompt_is_scored_once_for_all_its_choices(client: AsyncClient, backend: ScriptedBackend) -> None:
    body = TEXT | {"prompt": ["one two", "three"], "n": 2, "prompt_logprobs": 1, "echo": True, "logprobs": 0}
    choices = (await client.post(PATH, json=body)).json()["choices"]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"] != choices[2]["prompt_logprobs"]
    assert choices[2]["prompt_logprobs"] == choices[3]["prompt_logprobs"]
    assert [one.params.prompt_logprobs for one in backend.seen] == [1, None, 1, None]
    assert {len(one["logprobs"]["tokens"]) - len(one["prompt_logprobs"]) for one in choices} == {4}
    assert all(len(tops) == 1 for one in choices for tops in one["logprobs"]["top_logprobs"][1:])


async def test_many_log_probabilities_are_written_in_a_thread(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, loops = CompletionWriter.whole, threading.get_ident()
    is_here: list[bool] = []

    def noted(writer: CompletionWriter, done: Sequence[tuple[CompletionChoice, ChoiceDelta]]) -> bytes:
        is_here.append(threading.get_ident() == loops)
        return whole(writer, done)

    monkeypatch.setattr(CompletionWriter, "whole", noted)
    body = {"model": "tiny", "prompt": [5] * 100, "max_tokens": 100}
    for more in ({}, {"prompt_logprobs": 0}, {"prompt_logprobs": 20}, {"logprobs": 0}, {"logprobs": 20}):
        assert (await client.post(PATH, json=body | more)).status_code == 200
    assert is_here == [True, True, False, True, False]


def completion(n_tokens: int, **fields: Any) -> tuple[CompletionRequest, list[list[int]]]:
    return CompletionRequest(model="tiny", prompt="x", **fields), [[5] * n_tokens]


MOST = MAX_LOGPROBS_OF_PROMPTS
BOUNDS: dict[str, tuple[int, dict[str, Any]]] = {
    "alternatives": (MOST // 21, {"prompt_logprobs": 20}),
    "choices": (MOST // 32, {"prompt_logprobs": 1, "n": 16}),
    "an echo": (MOST // (2 + OFFSET_COST), {"echo": True, "logprobs": 1}),
    "both": (MOST // (5 + OFFSET_COST), {"echo": True, "logprobs": 1, "prompt_logprobs": 2}),
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_log_probabilities_of_prompts_are_bounded(kind: str) -> None:
    n_tokens, fields = BOUNDS[kind]
    check_logprobs_of_prompts(*completion(n_tokens, **fields))
    with pytest.raises(RequestError, match="must be at most 1000000") as refused:
        check_logprobs_of_prompts(*completion(n_tokens + 1, **fields))
    assert refused.value.param == ("prompt_logprobs" if "prompt_logprobs" in fields else "echo")
