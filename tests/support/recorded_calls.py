"""Answers as models of each family write them, with their content, reasoning and calls."""

from __future__ import annotations

from dataclasses import dataclass

CITY = '{"city": "Zürich", "unit": "celsius"}'
NESTED = '{"filter": {"tags": ["a}", "b\\"]"], "limit": 10}, "text": "line\\nbreak \\\\ {not json"}'


@dataclass(frozen=True)
class RecordedOutput:
    family: str
    text: str
    calls: tuple[tuple[str, str], ...]  # names, arguments
    content: str = ""
    reasoning: str = ""


def tagged(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


RECORDED = {
    "hermes, one call": RecordedOutput("hermes", tagged("get_weather", CITY), (("get_weather", CITY),)),
    "qwen, text and two calls": RecordedOutput(
        "hermes",
        f"I'll look both up.\n\n{tagged('get_weather', CITY)}\n{tagged('search', NESTED)}\n",
        (("get_weather", CITY), ("search", NESTED)),
        "I'll look both up.",
    ),
    "qwen 3, reasoning and a call": RecordedOutput(
        "hermes",
        f"<think>\nThe user wants <weather>. I call {{get_weather}}.\n</think>\n\n{tagged('get_weather', CITY)}",
        (("get_weather", CITY),),
        reasoning="The user wants <weather>. I call {get_weather}.",
    ),
    "qwen 3, reasoning and text": RecordedOutput(
        "hermes", "<think>\n\n</think>\n\nHello!  \nHow are you?\n", (), "Hello!  \nHow are you?\n"
    ),
    "hermes, arguments as a text": RecordedOutput(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>',
        (("get_weather", '{"city": "Rome"}'),),
    ),
    "hermes, a list, and no arguments": RecordedOutput(
        "hermes",
        '<tool_call>[{"name": "now"}, {"name": "today", "arguments": null}]</tool_call>',
        (("now", "{}"), ("today", "{}")),
    ),
    "hermes, cut off in the arguments": RecordedOutput(
        "hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zü', (("get_weather", '{"city": "Zü'),)
    ),
    "hermes, only a mark": RecordedOutput("hermes", "Write <tool_call> and", (), "Write <tool_call> and"),
    "hermes, no call but tags": RecordedOutput(
        "hermes", "<tool_call>\nhello\n</tool_call> \n", (), "<tool_call>\nhello\n</tool_call> \n"
    ),
    "llama 3.1, with its tag and type": RecordedOutput(
        "llama3",
        f'<|python_tag|>{{"type": "function", "name": "search", "parameters": {NESTED}}}',
        (("search", NESTED),),
    ),
    "llama 3, several": RecordedOutput(
        "llama3",
        f'{{"name": "get_weather", "parameters": {CITY}}}; {{"name": "now", "parameters": {{}}}}',
        (("get_weather", CITY), ("now", "{}")),
    ),
    "llama 3, an object that is no call": RecordedOutput(
        "llama3", '{"name": "Alice", "parameters": {"a": 1}}', (), '{"name": "Alice", "parameters": {"a": 1}}'
    ),
    "llama 3, text": RecordedOutput("llama3", 'Use {"name": "now"}.', (), 'Use {"name": "now"}.'),
    "mistral nemo, two in a list": RecordedOutput(
        "mistral",
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {CITY}}}, {{"name": "search", "arguments": {NESTED}}}]',
        (("get_weather", CITY), ("search", NESTED)),
    ),
    "mistral small 3, several, with ids": RecordedOutput(
        "mistral",
        f"One moment.[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{CITY}[TOOL_CALLS]search{NESTED}",
        (("get_weather", CITY), ("search", NESTED)),
        "One moment.",
    ),
    "mistral, a mark and text": RecordedOutput("mistral", "[TOOL_CALLS] none needed", (), "[TOOL_CALLS] none needed"),
}
WHOLE_AND_STREAMED = (
    "qwen, text and two calls",
    "qwen 3, reasoning and a call",
    "qwen 3, reasoning and text",
    "hermes, cut off in the arguments",
    "llama 3, several",
    "llama 3, text",
    "mistral small 3, several, with ids",
)
"""The cases of tests over HTTP."""
