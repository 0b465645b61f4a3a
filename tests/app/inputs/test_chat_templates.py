"""The template with tools of the default model renders its own template's text wherever no tools are given."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.tools.families import FAMILIES, family_of
from app.inputs.chat_templates import SMOLLM2, SMOLLM2_WITH_TOOLS, with_tools
from tests.support.tiny_models import tiny_tokenizer

USER = {"role": "user", "content": " Is it cold?\n"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALLS = [{"function": {"name": "look", "arguments": {"city": "Zug"}}}, {"function": {"name": "f", "arguments": "{}"}}]
WITH_CALLS = [
    {"role": "assistant", "content": "Well.", "tool_calls": CALLS},
    {"role": "tool", "content": "-3"},
]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
WRITTEN = """\
<|im_start|>assistant
Well.
<tool_call>
{"name": "look", "arguments": {"city": "Zug"}}
</tool_call>
<tool_call>
{"name": "f", "arguments": {}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
-3
</tool_response><|im_end|>
<|im_start|>assistant
"""


def render(template: str, messages: list[dict[str, Any]], prompt: bool = True, **more: Any) -> str:
    text = tiny_tokenizer().apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=prompt, **more
    )
    return str(text)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize(
    "messages",
    [[USER], [SYSTEM], [SYSTEM, USER], [USER, {"role": "assistant", "content": "\n "}, USER, SYSTEM]],
)
def test_without_tools_every_byte_is_the_original_s(messages: list[dict[str, Any]], prompt: bool) -> None:
    assert render(SMOLLM2_WITH_TOOLS, messages, prompt) == render(SMOLLM2, messages, prompt)


def test_tools_follow_the_system_message_and_calls_are_written_as_hermes_does() -> None:
    given = render(SMOLLM2_WITH_TOOLS, [SYSTEM, USER, *WITH_CALLS], tools=[TOOL])
    assert given.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '<tools>\n{"type": "function", "function": {"name": "look", "parameters": {}}}\n</tools>' in given
    assert given.endswith(f"<|im_start|>user\n Is it cold?\n<|im_end|>\n{WRITTEN}")
    later = render(SMOLLM2_WITH_TOOLS, [USER, *WITH_CALLS])
    assert later == render(SMOLLM2, [USER], prompt=False) + WRITTEN
    assert family_of(SMOLLM2_WITH_TOOLS) is FAMILIES["hermes"]


def test_only_the_known_template_is_extended() -> None:
    assert with_tools(SMOLLM2) == SMOLLM2_WITH_TOOLS
    assert with_tools(SMOLLM2 + " ") == SMOLLM2 + " "
