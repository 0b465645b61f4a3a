"""The items of a response's input, and the messages of a chat that they become."""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from app.api.requests.parsing import Strict, refuse
from app.api.requests.parts import MAX_MESSAGES, Name
from app.api.requests.tool_fields import ToolName

TEXTS = ("input_text", "output_text", "text", "reasoning_text", "refusal")  # kinds of parts that are text
NEEDED = {  # fields that an item must have in addition to its type
    "message": ("role", "content"),
    "reasoning": (),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
FREE = {"type", "id", "status", "phase"}  # fields that any item may have; an answer's items come back with them


class InputItem(Strict):
    """A message, an earlier call, its result, or earlier reasoning."""

    type: Literal["message", "reasoning", "function_call", "function_call_output"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str = ""
    call_id: Name | None = None
    name: ToolName | None = None
    arguments: str | None = None
    output: str | None = None
    id: Name | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    # Not passed to the model.
    summary: Annotated[list[Any], Field(max_length=MAX_MESSAGES)] = Field(default_factory=list)

    @classmethod
    def _prepared(cls, given: dict[str, Any]) -> dict[str, Any]:
        kind = given.get("type", "message")
        if isinstance(kind, str) and kind in NEEDED:
            if missing := next((name for name in NEEDED[kind] if name not in given), None):
                raise refuse(f"has no {missing}, which every {kind} has")
            allowed = FREE.union(NEEDED[kind], ("content", "summary") if kind == "reasoning" else ())
            if other := next((name for name in given if name in cls.model_fields and name not in allowed), None):
                raise refuse(f"has {other}, which no {kind} has")
        return given

    @field_validator("content", "output", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if not all(isinstance(part, dict) and part.get("type") in TEXTS for part in value):
            raise refuse(
                'must be a string or a list of {"type": "input_text", "text": ...} parts; this model reads text'
            )
        texts = [part.get("refusal" if part["type"] == "refusal" else "text") for part in value]
        if not all(isinstance(text, str) for text in texts):
            raise refuse("holds a text part whose text is no string; it must be a string")
        return "\n".join(texts)


def messages_of(instructions: str | None, items: list[InputItem]) -> list[dict[str, Any]]:
    """The messages of a chat; the items of one answer become one message of the assistant."""
    messages: list[dict[str, Any]] = []
    if instructions:  # templates take one system message, at the beginning
        leading = [*takewhile(lambda item: item.role in ("system", "developer"), items)]
        texts = [instructions, *(item.content for item in leading)]
        messages.append({"role": "system", "content": "\n\n".join(texts)})
        items = items[len(leading) :]
    for item in items:
        if item.type == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        elif item.type == "message" and item.role != "assistant":
            messages.append({"role": item.role, "content": item.content})
        elif item.type != "reasoning" or item.content:
            _speak(messages, item)
    return messages


def _speak(messages: list[dict[str, Any]], item: InputItem) -> None:
    """Add an item of the assistant to the last message, or begin one: reasoning, text and calls come in order."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else {}
    begins = {"reasoning": bool(last), "message": "content" in last or "tool_calls" in last}
    if not last or begins.get(item.type, False):
        messages.append(last := {"role": "assistant"})
    if item.type == "reasoning":
        last["reasoning_content"] = item.content
    elif item.type == "message":
        last["content"] = item.content
    else:
        function = {"name": item.name, "arguments": item.arguments}
        last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
