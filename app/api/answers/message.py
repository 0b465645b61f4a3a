"""The parts of a chat's answer as the message of a whole response, or as the deltas of a stream."""

from __future__ import annotations

from typing import Any

from app.api.tools.answer import AnswerReader
from app.api.tools.parts import Arguments, CallBegin, Part, Reasoning, TextPart
from engine.events import STOP

TOOL_CALLS = "tool_calls"  # the finish reason of an answer that ended with its calls


def whole_message(reader: AnswerReader, text: str) -> dict[str, Any]:
    """The message of a complete text; content is null if there are calls and no text."""
    parts = [*reader.push(text), *reader.flush()]
    content = "".join(part.text for part in parts if isinstance(part, TextPart))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        if isinstance(part, CallBegin):
            calls[part.index] = {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}}
        elif isinstance(part, Arguments):
            calls[part.index]["function"]["arguments"] += part.text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls and not content:
        message["content"] = None
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [*calls.values()]
    return message


def delta_of(part: Part) -> dict[str, Any]:
    """The delta of one part, which OpenAI sends as a chunk of its own."""
    match part:
        case TextPart(text=text):
            return {"content": text}
        case Reasoning(text=text):
            return {"reasoning_content": text}
        case CallBegin(index=index, id=call_id, name=name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case Arguments(index=index, text=text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def finish_reason(reason: str | None, reader: AnswerReader) -> str | None:
    """Why the answer ended: its calls, if it called tools and was not cut off."""
    return TOOL_CALLS if reason == STOP and reader.has_calls else reason
