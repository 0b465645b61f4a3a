"""Bodies of OpenAI's Responses API, which become bodies of chats.

Nothing is kept between requests, so a body that needs an earlier response is refused.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from app.api.requests.input_items import InputItem, messages_of
from app.api.requests.parsing import Strict, refuse, validated
from app.api.requests.parts import MAX_MESSAGES, Int32, Name
from app.api.requests.sampling_fields import SamplingFields
from app.api.requests.schemas import MAX_LOGPROBS, ChatCompletionRequest
from app.api.requests.tool_fields import MAX_TOOLS, Effort, known_choice
from engine.errors import RequestError

LOGPROBS = "message.output_text.logprobs"
# OpenAI's values of ``include``; all but log-probabilities are of tools and media that this server lacks.
INCLUDABLE = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
]
CHAT_NAMES = {"messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text.format"}


class ResponseTool(Strict):
    """A function that the client runs. Its arguments fit the schema only if ``strict`` is true."""

    endpoint = "tools"

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def for_chat(self) -> dict[str, Any]:
        return {"type": "function", "function": {k: v for k, v in self if k != "type" and v is not None}}


class NamedFunction(Strict):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(Strict):
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name | None = None
    description: str | None = None
    definition: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @property
    def for_chat(self) -> dict[str, Any]:
        given = {k: v for k, v in self.fields.items() if k != "type"}
        return {"type": self.type} | ({"json_schema": given} if given else {})

    @property
    def fields(self) -> dict[str, Any]:
        """The given fields, as they were written."""
        return {"schema" if k == "definition" else k: v for k, v in self if v is not None}


class TextOptions(Strict):
    """``text`` of a body."""

    format: TextFormat = TextFormat()
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Strict):
    """``reasoning`` of a body. No summaries are written, since the reasoning itself is in the answer."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None


class ResponseStreamOptions(Strict):
    """``stream_options`` of a body."""

    include_obfuscation: Literal[False] = False


class ResponsesRequest(SamplingFields):
    """Body of POST /v1/responses."""

    endpoint = "responses"

    input: Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = None  # a system message before the others
    max_output_tokens: Annotated[Int32, Field(ge=1)] | None = None
    max_tool_calls: Annotated[Int32, Field(ge=1)] | None = None  # of tools that the server runs, which has none
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | NamedFunction = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    include: Annotated[list[INCLUDABLE], Field(max_length=16)] = Field(default_factory=list)
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0
    # The chat's schema checks these.
    chat_template_kwargs: Any = None
    structured_outputs: Any = None

    @field_validator("input", mode="before")
    @classmethod
    def _as_items(cls, value: Any) -> Any:
        return [{"role": "user", "content": value}] if isinstance(value, str) else value

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _known_choice(cls, value: Any) -> Any:
        return known_choice(value, '{"type": "function", "name": ...}')

    @model_validator(mode="after")
    def _is_a_chat(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refuse("stream_options needs stream to be true")
        if self.top_logprobs and LOGPROBS not in self.include:
            raise refuse(f"top_logprobs needs {LOGPROBS!r} in include")
        _ = self.chat  # raises its errors
        return self

    @cached_property
    def chat(self) -> ChatCompletionRequest:
        """The same request as a chat; raises RequestError, with this body's names of fields."""
        choice = self.tool_choice
        named = {"type": "function", "function": {"name": getattr(choice, "name", "")}}
        same = {name: getattr(self, name) for name in self.model_fields_set & ChatCompletionRequest.model_fields.keys()}
        fields: dict[str, Any] = same | {
            "messages": messages_of(self.instructions, self.input),
            "max_completion_tokens": self.max_output_tokens,
            "tools": [tool.for_chat for tool in self.tools],
            "tool_choice": named if isinstance(choice, NamedFunction) else choice,
            "response_format": self.text.format.for_chat,
            "reasoning_effort": self.reasoning.effort,
            "logprobs": LOGPROBS in self.include,
            "stream_options": None,
        }
        try:
            return validated(ChatCompletionRequest, {k: v for k, v in fields.items() if v is not None})
        except RequestError as error:
            raise with_response_names(error) from None


def with_response_names(error: RequestError) -> RequestError:
    """The error of a chat with the names of this body's fields; without an index, because messages are not items."""
    chat_param = error.param or ""
    name = re.split(r"[.\[]", chat_param)[0]
    if name not in CHAT_NAMES:
        return error
    said = str(error)
    if said.startswith(chat_param):
        said = CHAT_NAMES[name] + said[len(chat_param) :]
    if name == "max_completion_tokens":  # its error also names the form
        said = said.replace("response_format", CHAT_NAMES["response_format"])
    return type(error)(said, CHAT_NAMES[name])
