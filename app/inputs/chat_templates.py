"""Renders conversations, and adds tools to the chat template of SmolLM2, the family of the default model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SMOLLM2 = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

_WITH_TOOLS = """\
{%- set default = 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' %}
{%- set has_system = messages and messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + (messages[0].content if has_system else default) }}
{%- if tools %}
{{- '\\n\\n# Tools\\n\\nYou may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\n\\nTo call one, write a JSON object with its name and arguments between these tags:\\n' }}
{{- '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (loop.first and has_system) %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": ' + (function.name | tojson) + ', "arguments": ' }}
{{- (function.arguments if function.arguments is string else function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

SMOLLM2_WITH_TOOLS = (
    "{%- set found = namespace(tools=tools) %}"
    "{%- for m in messages if m.tool_calls or m.role == 'tool' %}{% set found.tools = true %}{% endfor %}"
    f"{{%- if found.tools %}}{_WITH_TOOLS}{{% else %}}{SMOLLM2}{{% endif %}}"
)
"""Equals ``SMOLLM2``, to the byte, for a conversation without tools; writes tool calls in Hermes' format."""


def with_tools(template: str) -> str:
    """Return a checkpoint's chat template; instead of one that is known to ignore tools, one that renders them."""
    return SMOLLM2_WITH_TOOLS if template == SMOLLM2 else template


def render_chat(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[dict[str, Any]], *, prompt: bool, origin: str
) -> str:
    """Return messages as the chat template renders them; with ``prompt`` the text ends where the next answer begins.

    Raises ConfigError, which begins with ``origin``, if the template fails.
    """
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt))
    except Exception as error:  # a template may raise anything
        raise ConfigError(f"{origin}: the chat template fails on this conversation: {error}") from error
