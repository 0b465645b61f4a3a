"""Fields of a chat: messages, tools, and variables of its chat template."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from app.api.requests.parsing import Name, Strict, refuse, shorten, texts_of

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_CALLS = 128  # of one message
MAX_KWARGS = 16
NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)
KEY = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
MAX_VALUE = 1024  # characters of a text, and items of a list, in a variable of a template


def checked_name(value: str) -> str:
    """Returns a tool's name; raises an error that says what is allowed."""
    if not NAME.fullmatch(value):
        raise refuse(f"is {shorten(value)}; it must be 1 to 128 letters, digits, '_', '-', '.' and ':'")
    return value


def known_choice(value: Any, named: str) -> Any:
    """Returns a ``tool_choice`` of a known kind, or raises an error; ``named`` shows how to name one tool."""
    if value in ("auto", "none", "required") or (isinstance(value, dict) and value.get("type") == "function"):
        return value
    raise refuse(f"is {shorten(value)}; it must be 'auto', 'none', 'required', or {named}")


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
ToolName = Annotated[str, AfterValidator(checked_name)]


class FunctionDefinition(Strict):
    """A tool as the model sees it."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # JSON schema of the arguments
    strict: bool | None = None  # arguments must fit the schema


class FunctionTool(Strict):
    """A tool that the client runs."""

    type: Literal["function"]
    function: FunctionDefinition

    @property
    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it, without absent fields."""
        function = {"name": self.function.name}
        given = {"description": self.function.description, "parameters": self.function.parameters}
        return {"type": "function", "function": function | {k: v for k, v in given.items() if v is not None}}


class CalledFunction(Strict):
    """The tool that an earlier answer called, and its arguments: a JSON object as text."""

    name: ToolName
    arguments: str = ""


class ToolCall(Strict):
    """A call in an earlier answer."""

    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Annotated[int, Field(ge=0, lt=2**31)] | None = None  # clients that streamed the answer may send it


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


Messages = Annotated[list[ChatMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)]


class FunctionName(Strict):
    """The name of a function."""

    name: str


class TemplateFields(Strict):
    """Input of a chat template in addition to the messages."""

    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @field_validator("tools", mode="after")
    @classmethod
    def _different_names(cls, value: list[FunctionTool]) -> list[FunctionTool]:
        names = [tool.function.name for tool in value]
        if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
            raise refuse(f"has {shorten(twice)} twice; the names of tools must differ")
        return value

    @field_validator("chat_template_kwargs", mode="before")
    @classmethod
    def _plain_values(cls, value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > MAX_KWARGS:
            raise refuse(f"must be an object of at most {MAX_KWARGS} entries")
        for key, given in value.items():
            if not KEY.fullmatch(key):
                raise refuse(f"has the key {shorten(key)}; keys must be names of variables of at most 64 characters")
            items = given if isinstance(given, list) else [given]
            if len(items) > MAX_VALUE or not all(map(_is_plain, items)):
                raise refuse(
                    f"gives {key} the value {shorten(given)}; values must be texts of at most {MAX_VALUE} characters, "
                    "32-bit numbers, true, false, or lists of them"
                )
        return {key: given for key, given in value.items() if given is not None}

    @model_validator(mode="after")
    def _one_effort(self) -> Self:
        if self.reasoning_effort is not None and "reasoning_effort" in self.chat_template_kwargs:
            raise refuse("reasoning_effort is in chat_template_kwargs too; give only one of them")
        return self

    @property
    def offered(self) -> list[FunctionTool]:
        """The tools that the model sees."""
        return self.tools

    @property
    def template_variables(self) -> dict[str, Any]:
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return self.chat_template_kwargs | effort


class NamedTool(Strict):
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class ToolFields(TemplateFields):
    """The tools, and whether the model may or must call them."""

    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True

    _known = field_validator("tool_choice", mode="before")(
        lambda value: known_choice(value, '{"type": "function", "function": {"name": ...}}')
    )

    @model_validator(mode="after")
    def _tools_fit_together(self) -> Self:
        if self.tool_choice == "required" and not self.tools:
            raise refuse("tool_choice is 'required', but there are no tools")
        if isinstance(self.tool_choice, NamedTool) and not self.forced:
            raise refuse(f"tool_choice names {shorten(self.tool_choice.function.name)}, which is not among tools")
        return self

    @property
    def offered(self) -> list[FunctionTool]:
        """The tools that the model sees; none if it must not call any."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def forced(self) -> list[FunctionTool]:
        """The tools of which the answer must call one; empty: no call is forced."""
        if isinstance(self.tool_choice, NamedTool):
            return [tool for tool in self.tools if tool.function.name == self.tool_choice.function.name]
        return self.tools if self.tool_choice == "required" else []

    @property
    def keeps_calls(self) -> bool:
        """Whether masks make calls fit their schemas: if a call is forced, or a tool is strict."""
        return bool(self.forced) or any(tool.function.strict for tool in self.offered)

    @property
    def may_repeat(self) -> bool:
        """Whether an answer may have several calls; it has one if the choice names a tool."""
        return self.parallel_tool_calls and not isinstance(self.tool_choice, NamedTool)


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_VALUE
    return value is None or (isinstance(value, bool | int | float) and abs(value) < 2**31)
