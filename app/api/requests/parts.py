"""Bounded types of fields, and the messages of a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from app.api.requests.parsing import Strict, refuse, texts_of
from app.api.requests.tool_fields import MAX_CALLS, ToolCall

MAX_MESSAGES = 4096
MESSAGE_COST = 64  # a message without text costs as much as so many characters

Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]  # messages between processes hold no wider integers
TokenId = Annotated[Int32, Field(ge=0)]
Name = Annotated[str, Field(max_length=256)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class ChatMessage(Strict):
    """One turn of a conversation; content may come as a list of text parts, which newlines join."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str  # "" where an assistant's is null or missing
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] = Field(default_factory=list)
    tool_call_id: Name | None = None  # of the call that a tool's message answers
    reasoning_content: str | None = None  # of an earlier answer

    @classmethod
    def _prepared(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Drop empty lists: clients send the answers of this server back as they came."""
        given = {name: value for name, value in given.items() if value != [] or name == "content"}
        return {"content": ""} | given if given.get("role") == "assistant" else given

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if (self.tool_calls or self.reasoning_content) and self.role != "assistant":
            raise refuse(f"has tool_calls or reasoning_content, and its role is {self.role}; they are the assistant's")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise refuse("must have a tool_call_id if its role is tool, and only then")
        return self

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        return "\n".join(texts_of(value)) if isinstance(value, list) else value

    @property
    def n_characters(self) -> int:
        """Characters of all its texts; calls have a fixed cost in addition."""
        calls = sum(len(call.function.arguments) + MESSAGE_COST for call in self.tool_calls)
        return len(self.content) + len(self.reasoning_content or "") + calls


Messages = Annotated[list[ChatMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)]


def weight_of(messages: list[ChatMessage]) -> int:
    """Estimated CPU cost of rendering and tokenising a conversation, in equivalent JSON bytes to parse."""
    return sum(4 * (message.n_characters + MESSAGE_COST) for message in messages)
