"""A call forced by ``tool_choice`` or kept to a strict schema: any model writes one, the same with speculation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from app.inputs.tokenizers import load_tokenizer
from tests.app.api.engine_backend import over_engine
from tests.app.api.tools.chat_templates import OF_FAMILY, QWEN_3
from tests.app.conftest import error_of

UNIT = {"enum": ["C", "F", None]}
ARGUMENTS = {
    "type": "object",
    "properties": {"unit": {"$ref": "#/$defs/Unit"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit", "days"],
    "additionalProperties": False,
    "$defs": {"Unit": UNIT},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": ARGUMENTS, "strict": True}}
    for name in ("forecast", "history")
]
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Rain?"}], "tools": TOOLS, "seed": 3}
CHAT |= {"max_tokens": 90, "parallel_tool_calls": False, "return_token_ids": True}
NAMED = {"type": "function", "function": {"name": "history"}}
PATH = "/v1/chat/completions"


async def same_with_speculation(client: AsyncClient, *methods: str, **fields: Any) -> dict[str, Any]:
    """The choice of a chat, after a check that its text is the same by all methods and that its calls are valid."""
    choices = []
    for speculative in ({"enabled": False}, *({"method": method} for method in methods)):
        answer = await client.post(PATH, json=CHAT | fields | {"speculative": speculative})
        assert answer.status_code == 200, answer.text
        choices += answer.json()["choices"]
    assert [choice["token_ids"] for choice in choices] == [choices[0]["token_ids"]] * len(choices)
    for call in choices[0]["message"].get("tool_calls") or []:
        arguments = json.loads(call["function"]["arguments"])
        assert set(arguments) == {"unit", "days"}
        assert arguments["unit"] in UNIT["enum"]
        assert 1 <= arguments["days"] <= 9
    return dict(choices[0])


@pytest.mark.parametrize("family", OF_FAMILY)
async def test_a_random_model_makes_the_forced_call(family: str, tiny_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint)
    tokenizer.chat_template = OF_FAMILY[family]
    at_once = {"chat_template_kwargs": {"enable_thinking": False}}
    async with over_engine(tiny_checkpoint, tokenizer, 2000) as client:
        required = await same_with_speculation(client, "auto", tool_choice="required", temperature=0, **at_once)
        named = await same_with_speculation(client, "pld", tool_choice=NAMED, temperature=1.0, **at_once)
    for choice, names in ((required, {"forecast", "history"}), (named, {"history"})):
        [call] = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert call["function"]["name"] in names


def with_marks(checkpoint: Path, *, is_special: bool) -> tuple[PreTrainedTokenizerFast, int]:
    """A tokenizer of Qwen's family whose marks are single tokens, special or not; the first mark's id."""
    tokenizer = load_tokenizer(checkpoint)
    text = tokenizer.backend_tokenizer.to_str()
    read = json.loads(text.replace("<|system|>", "<tool_call>").replace("<|assistant|>", "</tool_call>"))
    for token in read["added_tokens"]:
        token["special"] = is_special or "tool_call" not in token["content"]
    marked = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(read)), eos_token=tokenizer.eos_token, chat_template=QWEN_3
    )
    return marked, tokenizer.convert_tokens_to_ids("<|system|>")


@pytest.mark.parametrize("is_special", [True, False])
async def test_a_mark_that_is_a_token_begins_a_call(is_special: bool, tiny_checkpoint: Path) -> None:
    tokenizer, mark = with_marks(tiny_checkpoint, is_special=is_special)
    async with over_engine(tiny_checkpoint, tokenizer, 2000) as client:
        forced = await same_with_speculation(client, "pld", "auto", tool_choice=NAMED, temperature=0)
        assert forced["token_ids"][0] == mark
        # A bias makes the model begin with the mark, or never write it.
        called = await same_with_speculation(client, "auto", logit_bias={str(mark): 100.0}, temperature=0)
        assert len(called["message"]["tool_calls"]) == 1
        method = "pld+suffix+token-recycling"
        text = await same_with_speculation(client, method, logit_bias={str(mark): -100.0}, temperature=1.0)
        assert not text["message"].get("tool_calls")


async def test_a_schema_that_no_mask_can_keep_is_refused(tiny_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint)
    tokenizer.chat_template = QWEN_3
    impossible = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "minProperties": "x"}}}
    async with over_engine(tiny_checkpoint, tokenizer, 2000) as client:
        answer = await client.post(PATH, json=CHAT | {"tools": [impossible], "tool_choice": "required"})
    assert error_of(answer, 400)["param"] == "tools"
