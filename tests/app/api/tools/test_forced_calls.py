"""Calls that have to be made: whatever the model, its text is a call of its family, the same with speculation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from app.inputs.tokenizers import load_tokenizer
from tests.support.chat_templates import OF_FAMILY
from tests.support.engine_backend import over_engine

UNIT = {"enum": ["C", "F", None]}
ARGUMENTS = {
    "type": "object",
    "properties": {"unit": UNIT, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": ARGUMENTS, "strict": True}}
    for name in ("forecast", "history")
]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Rain?"}], "tools": TOOLS, "max_tokens": 90}
NAMED = {"type": "function", "function": {"name": "history"}}


def check_arguments(text: str) -> None:
    arguments = json.loads(text)
    assert set(arguments) == {"unit", "days"}
    assert arguments["unit"] in UNIT["enum"]
    assert 1 <= arguments["days"] <= 9


@pytest.mark.parametrize("family", OF_FAMILY)
@pytest.mark.parametrize("temperature", [0, 1.0])
async def test_a_random_model_calls_what_it_has_to(family: str, temperature: float, tiny_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint)
    tokenizer.chat_template = OF_FAMILY[family][1]
    async with over_engine(tiny_checkpoint, tokenizer, 2000) as client:
        for choice, names in (("required", {"forecast", "history"}), (NAMED, {"history"})):
            fields = CHAT | {"tool_choice": choice, "parallel_tool_calls": False, "seed": 3, "temperature": temperature}
            told = []
            for speculative in ({"enabled": False}, {"method": "pld"}, {"method": "auto"}):
                answer = await client.post("/v1/chat/completions", json=fields | {"speculative": speculative})
                assert answer.status_code == 200, answer.text
                [made] = answer.json()["choices"]
                [call] = made["message"]["tool_calls"]
                assert made["finish_reason"] == "tool_calls"
                assert call["function"]["name"] in names
                check_arguments(call["function"]["arguments"])
                told.append((call["function"], answer.json()["usage"]["completion_tokens"]))
            assert told == [told[0]] * 3


def with_marks(checkpoint: Path, *, is_special: bool) -> tuple[PreTrainedTokenizerFast, int]:
    """A tokenizer of Qwen's family whose marks are tokens, special ones or added ones as Qwen's are; the first's id."""
    tokenizer = load_tokenizer(checkpoint)
    text = tokenizer.backend_tokenizer.to_str()
    read = json.loads(text.replace("<|system|>", "<tool_call>").replace("<|assistant|>", "</tool_call>"))
    for token in read["added_tokens"]:
        token["special"] = is_special or "tool_call" not in token["content"]
    marked = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(read)),
        eos_token=tokenizer.eos_token,
        chat_template=OF_FAMILY["qwen 3"][1],
    )
    return marked, tokenizer.convert_tokens_to_ids("<|system|>")


@pytest.mark.parametrize("is_special", [True, False])
async def test_marks_that_are_tokens_are_written(is_special: bool, tiny_checkpoint: Path) -> None:
    tokenizer, mark = with_marks(tiny_checkpoint, is_special=is_special)
    async with over_engine(tiny_checkpoint, tokenizer, 2000) as client:
        told = []
        for speculative in ({"enabled": False}, {"method": "pld"}, {"method": "auto"}):
            fields = {"tool_choice": NAMED, "speculative": speculative, "temperature": 0, "return_token_ids": True}
            answer = await client.post("/v1/chat/completions", json=CHAT | fields)
            assert answer.status_code == 200, answer.text
            [made] = answer.json()["choices"]
            check_arguments(made["message"]["tool_calls"][0]["function"]["arguments"])
            assert made["token_ids"][0] == mark
            told.append(made["token_ids"])
        assert told == [told[0]] * 3


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize("calls", [True, False])
async def test_an_answer_that_may_call_a_strict_function_is_the_same_with_speculation(
    calls: bool, is_special: bool, tiny_checkpoint: Path
) -> None:
    """The mark is a token that a bias makes the model begin with, or never write."""
    tokenizer, mark = with_marks(tiny_checkpoint, is_special=is_special)
    fields = CHAT | {"logit_bias": {str(mark): 100.0 if calls else -100.0}, "parallel_tool_calls": False}
    async with over_engine(tiny_checkpoint, tokenizer, 2000) as client:
        for style in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}):
            told = []
            for speculative in ({"enabled": False}, {"method": "pld+suffix+token-recycling"}, {"method": "auto"}):
                answer = await client.post("/v1/chat/completions", json=fields | style | {"speculative": speculative})
                assert answer.status_code == 200, answer.text
                [made] = answer.json()["choices"]
                written = made["message"].get("tool_calls") or []
                assert len(written) == calls
                for call in written:
                    check_arguments(call["function"]["arguments"])
                told.append((made["message"]["content"], [call["function"] for call in written]))
            assert told == [told[0]] * 3


async def test_what_no_mask_can_keep_is_named(tiny_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint)
    tokenizer.chat_template = next(iter(OF_FAMILY.values()))[1]
    impossible = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "minProperties": "x"}}}
    async with over_engine(tiny_checkpoint, tokenizer, 2000) as client:
        answer = await client.post(
            "/v1/chat/completions", json=CHAT | {"tools": [impossible], "tool_choice": "required"}
        )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "tools"
