"""What bodies are made of: bounded types, messages of a conversation, groups of options."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from app.api.requests.parsing import Strict, refuse, texts_of
from app.api.requests.tool_fields import MAX_CALLS, ToolCall
from retrieval_store.service.manifest_feed import is_namespace

MAX_MESSAGES = 4096
MESSAGE_COST = 64  # characters: so long a text takes as much work as a message without any

Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]  # wider integers have no form on the way to the target
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

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, value: Any) -> Any:
        """Drop empty optional keys: clients send the answers of this server back as they came."""
        if not isinstance(value, dict):
            return value
        given = {k: v for k, v in value.items() if not (v is None or (v == [] and k != "content"))}
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
        """Of all its texts."""
        calls = sum(len(call.function.arguments) + MESSAGE_COST for call in self.tool_calls)
        return len(self.content) + len(self.reasoning_content or "") + calls


Messages = Annotated[list[ChatMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)]


def weight_of(messages: list[ChatMessage]) -> int:
    """Work of rendering and tokenising a conversation, in bytes whose parsing takes as long."""
    return sum(4 * (message.n_characters + MESSAGE_COST) for message in messages)


class SpeculativeOptions(Strict):
    """Extension: the drafting method of this request."""

    method: Name | None = None  # None: the server's default; "+" joins several methods
    max_nodes: Annotated[int, Field(ge=1, le=4096)] | None = None  # drafted nodes per step, at most the server's limit
    enabled: bool = True  # False: plain autoregressive decoding, whatever `method` says
    trace: bool = False  # True: the answer tells the tree of every step; by leave, for drafts may be others' texts
    # The tenant whose texts drafts may come from, besides the shared corpus. Requests of one namespace share cached
    # prefixes and what speculators learn from them, unless their tenants or cache salts differ. The caller's key says
    # which namespaces a request may name (`app.api.requests.grants`).
    namespace: str | None = None

    @field_validator("namespace")
    @classmethod
    def _namespace_name(cls, value: str | None) -> str | None:
        if value is not None and not is_namespace(value):
            raise refuse("must be 1 to 128 letters, digits, '.', '_' and '-', no '.' first")
        return value


class StreamOptions(Strict):
    """Extra content of a stream."""

    include_usage: bool = False  # a last chunk with usage
    continuous_usage_stats: bool = False  # vLLM's: usage so far in every chunk
    include_obfuscation: bool = False  # OpenAI's: chunks are padded to sizes that say less of their text
