"""Calls that have to be made: whatever the model, its text is a call of its family, the same with speculation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.api.tools.families import FAMILIES
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
                arguments = json.loads(call["function"]["arguments"])
                assert set(arguments) == {"unit", "days"}
                assert arguments["unit"] in UNIT["enum"]
                assert 1 <= arguments["days"] <= 9
                told.append((call["function"], answer.json()["usage"]["completion_tokens"]))
            assert told == [told[0]] * 3


@pytest.mark.parametrize("family", ["qwen 3", "llama 3"])
async def test_an_answer_that_may_call_a_strict_function_is_the_same_with_speculation(
    family: str, tiny_checkpoint: Path
) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint)
    name, tokenizer.chat_template = OF_FAMILY[family]
    opens = "{" if FAMILIES[name].is_bare else FAMILIES[name].opens[0]
    bias = {str(token): 12.0 for token in tokenizer.encode(opens, add_special_tokens=False)}
    async with over_engine(tiny_checkpoint, tokenizer, 2000) as client:
        for seed in range(3):
            fields = CHAT | {"seed": seed, "temperature": 1.0, "max_tokens": 40, "logit_bias": bias if seed else {}}
            told = []
            for speculative in ({"enabled": False}, {"method": "pld+suffix+token-recycling"}):
                answer = await client.post("/v1/chat/completions", json=fields | {"speculative": speculative})
                assert answer.status_code == 200, answer.text
                [made] = answer.json()["choices"]
                calls = made["message"].get("tool_calls") or []
                if made["finish_reason"] == "tool_calls":
                    assert {"unit", "days"} == set(json.loads(calls[-1]["function"]["arguments"]))
                told.append((made["message"]["content"], [call["function"] for call in calls]))
            assert told[0] == told[1]


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
