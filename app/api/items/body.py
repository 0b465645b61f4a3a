"""Bodies of OpenAI's Responses API, which are conversations like those of chats in other words.

A body is checked here and becomes a chat's, which says what it means. Nothing is kept between requests, so all that
needs an earlier response is refused.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from app.api.items.input import InputItem, messages_of
from app.api.requests.parsing import Strict, refuse, shorten, validated
from app.api.requests.parts import MAX_MESSAGES, Int32, Name
from app.api.requests.schemas import MAX_LOGPROBS, ChatCompletionRequest
from app.api.requests.text_fields import HintFields
from app.api.requests.tool_fields import MAX_TOOLS
from engine.errors import RequestError

LOGPROBS = "message.output_text.logprobs"
# Fields of ours that mean here what they mean in a chat; what they may be is checked there.
EXTENSIONS = ("seed", "speculative", "verification", "prediction", "cache_salt", "priority", "chat_template_kwargs")
SAMPLING = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "ignore_eos")
SAME = (
    "model", "temperature", "top_p", "stream", "parallel_tool_calls", "user", "metadata", "safety_identifier",
    "prompt_cache_key", "service_tier", *EXTENSIONS, *SAMPLING,
)  # fmt: skip
CHAT_NAMES = {"messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text.format"}


class ResponseTool(Strict):
    """A function that the client runs. Only where ``strict`` is true its arguments are kept to the schema."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def for_chat(self) -> dict[str, Any]:
        """As a chat has it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class NamedFunction(Strict):
    """The one function that has to be called."""

    type: Literal["function"]
    name: str


class TextFormat(Strict):
    """What the text has to be."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name | None = None
    description: str | None = None
    wanted: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @property
    def for_chat(self) -> dict[str, Any]:
        """As a chat has it."""
        given = self.model_dump(exclude={"type"}, exclude_none=True, by_alias=True)
        return {"type": self.type, "json_schema": given} if given else {"type": self.type}


class TextOptions(Strict):
    """``text`` of a body."""

    format: TextFormat = TextFormat()
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Strict):
    """``reasoning`` of a body. No summaries are written, since the reasoning itself is in the answer."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto"] | None = None


class ResponseStreamOptions(Strict):
    """``stream_options`` of a body."""

    include_obfuscation: Literal[False] = False


class ResponsesRequest(HintFields):
    """Body of POST /v1/responses."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
        "background": (False,),
        "truncation": ("disabled",),
        "context_management": ([],),
        "moderation": (),
    }

    model: Name
    input: Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = None  # a system message in front of the others
    max_output_tokens: Annotated[Int32, Field(ge=1)] | None = None
    max_tool_calls: Annotated[Int32, Field(ge=1)] | None = None  # of tools that a server runs: there are none here
    temperature: Any = 1.0
    top_p: Any = 1.0
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | NamedFunction = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    include: Annotated[list[Name], Field(max_length=16)] = Field(default_factory=list)
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0
    user: Name | None = None

    seed: Any = None
    speculative: Any = None
    verification: Any = None
    prediction: Any = None
    cache_salt: Any = None
    priority: Any = None
    chat_template_kwargs: Any = None
    top_k: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None

    @field_validator("input", mode="before")
    @classmethod
    def _as_items(cls, value: Any) -> Any:
        return [{"role": "user", "content": value}] if isinstance(value, str) else value

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _known_choice(cls, value: Any) -> Any:
        if value in ("auto", "none", "required") or (isinstance(value, dict) and value.get("type") == "function"):
            return value
        raise refuse(
            f"is {shorten(value)}; it must be 'auto', 'none', 'required', or {{\"type\": \"function\", \"name\": ...}}"
        )

    @model_validator(mode="after")
    def _is_a_chat(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refuse("stream_options needs stream to be true")
        if self.top_logprobs and LOGPROBS not in self.include:
            raise refuse(f"top_logprobs needs {LOGPROBS!r} in include")
        assert self.chat
        return self

    @cached_property
    def chat(self) -> ChatCompletionRequest:
        """The chat that it comes to.

        Raises:
            RequestError: a value that only a chat checks is wrong; the field is named as it is here.
        """
        choice = self.tool_choice
        named = {"type": "function", "function": {"name": getattr(choice, "name", "")}}
        fields: dict[str, Any] = {name: getattr(self, name) for name in SAME} | {
            "messages": messages_of(self.instructions, self.input),
            "max_completion_tokens": self.max_output_tokens,
            "tools": [tool.for_chat for tool in self.tools],
            "tool_choice": named if isinstance(choice, NamedFunction) else choice,
            "response_format": self.text.format.for_chat,
            "reasoning_effort": self.reasoning.effort,
            "logprobs": LOGPROBS in self.include,
            "top_logprobs": self.top_logprobs,
        }
        try:
            return validated(ChatCompletionRequest, {k: v for k, v in fields.items() if v is not None})
        except RequestError as error:
            raise as_here(error) from None


def as_here(error: RequestError) -> RequestError:
    """The same; a chat's field has its name in a response's body."""
    field, dot, rest = (error.param or "").partition(".")
    name, bracket, index = field.partition("[")
    if name not in CHAT_NAMES:
        return error
    param = CHAT_NAMES[name] + (bracket + index + dot + rest if name == "messages" else "")
    return type(error)(str(error).replace(error.param or name, param, 1), param)
