"""Bodies of OpenAI's Responses API, which become bodies of chats.

Only responses in the background are kept, for a while, so a body that needs an earlier response is refused.
"""

from __future__ import annotations

import re
from functools import cached_property
from itertools import takewhile
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from app.api.requests.chat_fields import MAX_MESSAGES, MAX_TOOLS, Effort, ToolName, known_choice
from app.api.requests.parsing import Int32, Name, Strict, refuse, validated
from app.api.requests.sampling_fields import SamplingFields
from app.api.requests.schemas import MAX_LOGPROBS, ChatCompletionRequest
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
                'must be a string or a list of {"type": "input_text", "text": ...} parts, because this model reads text'
            )
        texts = [part.get("refusal" if part["type"] == "refusal" else "text") for part in value]
        if not all(isinstance(text, str) for text in texts):
            raise refuse("holds a text part whose text is no string; it must be a string")
        return "\n".join(texts)


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
    background: bool = False  # the answer outlives the connection: GET /v1/responses/{id}
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

    _known = field_validator("tool_choice", mode="before")(
        lambda value: known_choice(value, '{"type": "function", "name": ...}')
    )

    @model_validator(mode="after")
    def _is_a_chat(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refuse("stream_options needs stream to be true")
        if self.background and not self.store and "store" in self.model_fields_set:
            raise refuse("store is false, but background is true, which keeps the response; leave store out")
        if self.top_logprobs and LOGPROBS not in self.include:
            raise refuse(f"top_logprobs needs {LOGPROBS!r} in include")
        _ = self.chat  # raises its errors
        return self

    @property
    def is_kept(self) -> bool:
        """Whether the answer outlives the connection."""
        return self.background

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
