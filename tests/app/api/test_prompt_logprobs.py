"""Log-probabilities of prompts in vLLM's form and in OpenAI's echo, from a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from app.inputs.tokenizers import load_tokenizer
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
