"""Renders messages, tools and variables with the model's chat template, and builds the form of the answer."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jinja2
import msgspec
from jinja2.defaults import DEFAULT_NAMESPACE

from app.api.requests.chat_fields import ChatMessage, TemplateFields, ToolCall, ToolFields
from app.api.tools.families import CLOSE, FAMILIES, OPEN, CallFamily, family_of
from app.api.tools.grammar import CallGrammars
from app.api.tools.parts import AnswerForm
from engine.errors import RequestError
from engine.grammar.grammar import MOST_CHARS, Grammar, Thought

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Errors that a client's input may cause in a template.
FAILURES = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
GLOBALS = {*DEFAULT_NAMESPACE, "messages", "tools", "documents", "raise_exception", "strftime_now", "loop"}
AUTO, NONE = "auto", "none"
THINKING = "enable_thinking"  # the variable by which clients turn reasoning off
EFFORT = "reasoning_effort"
TAG = re.compile("<.*>", re.DOTALL)


class ChatTemplate:
    """A model's chat template.

    Args:
        tokenizer: of the model.
        tool_parser: name of the family whose calls the model writes, ``auto``: as its template shows, ``none``.
        reasoning_parser: ``think``: the model may reason before it answers, ``auto``: as its template shows, ``none``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, tool_parser: str, reasoning_parser: str) -> None:
        self._tokenizer = tokenizer
        self._source = _source(tokenizer, None)
        self._with_tools = _source(tokenizer, [{}])
        named = FAMILIES.get(tool_parser)
        self.family: CallFamily | None = family_of(self._with_tools) if tool_parser == AUTO else named
        has_think = reasoning_parser == AUTO and CLOSE in self._source + self._with_tools
        self.has_reasoning = has_think or reasoning_parser == "think"
        arguments = inspect.signature(tokenizer.apply_chat_template).parameters
        self._reserved = {*arguments, *tokenizer.special_tokens_map, *GLOBALS}

    def render(self, messages: Sequence[ChatMessage], fields: TemplateFields, *, add_generation_prompt: bool) -> str:
        """The text of a prompt.

        Raises:
            RequestError: the model has no template, or it refuses the messages or ignores what they or ``fields`` hold.
        """
        if not self._source:
            raise RequestError("this model has no chat template; use /v1/completions", "messages")
        source = self._with_tools if fields.offered else self._source
        variables = dict(fields.template_variables)
        if variables.get(EFFORT) == NONE and not _mentions(source, EFFORT):
            if variables.get(THINKING, False) is not False:
                raise RequestError(f"{EFFORT} is none, but {THINKING} is not false; give only one of them", EFFORT)
            del variables[EFFORT]
            variables[THINKING] = False
        self._check(messages, bool(fields.offered), variables, source)
        turns = [self._turn(i, message, source) for i, message in enumerate(messages)]
        try:
            applied = self._tokenizer.apply_chat_template(
                turns,
                tools=[tool.for_template for tool in fields.offered] or None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        except FAILURES as error:
            raise RequestError(f"the model's chat template refuses these messages: {error}", "messages") from None
        text = str(applied)
        closes = self.has_reasoning and variables.get(THINKING) is False and not _mentions(source, THINKING)
        if closes and add_generation_prompt and not text.rstrip().endswith(CLOSE):  # the model must answer at once
            text += ("" if text.rstrip().endswith(OPEN) else f"{OPEN}\n") + f"\n{CLOSE}\n\n"
        return text

    def thought(self, prompt_end: str) -> Thought | None:
        """The reasoning that an answer may begin with; None: the model does not reason, or the prompt ends it."""
        end = prompt_end.rstrip()
        if not self.has_reasoning or end.endswith(CLOSE):
            return None
        return Thought(CLOSE, "" if end.endswith(OPEN) else OPEN)

    def answer_form(self, fields: ToolFields, thought: Thought | None, *, has_form: bool) -> AnswerForm:
        """The parts that an answer may have, and their marks. ``has_form``: a grammar governs the content."""
        family = self.family if fields.offered else None
        has_reasoning = self.has_reasoning and not (has_form and thought is None)
        marks = (*(family.marks if family is not None else ()), *((OPEN, CLOSE) if has_reasoning else ()))
        ids = map(self._tokenizer.backend_tokenizer.token_to_id, marks)
        return AnswerForm(
            family,
            frozenset(tool.function.name for tool in fields.offered),
            most_calls=None if fields.parallel_tool_calls else 1,
            has_reasoning=has_reasoning,
            is_open=thought is not None and not thought.opening,
            keeps_spaces=has_form,
            shown=frozenset(found for found in ids if found is not None),
        )

    def grammar(self, fields: ToolFields, form: Grammar | None, thought: Thought | None) -> Grammar | None:
        """The grammar of an answer: its form, calls of tools, or either of them; None: any text.

        Raises:
            RequestError: the grammar of the calls is too large.
        """
        made = form
        if fields.keeps_calls or (form is not None and fields.offered):
            must_call = bool(fields.forced)
            calls = self._call_source(fields, is_alone=must_call or form is not None)
            made = Grammar(calls) if form is None or must_call else Grammar(form.source, calls)
        return None if made is None else msgspec.structs.replace(made, thought=thought)

    def _call_source(self, fields: ToolFields, *, is_alone: bool) -> str:
        """The grammar of an answer that is only calls, or may have calls after any text."""
        assert self.family is not None, "checked when the prompt was rendered"
        from llguidance import LLMatcher  # with the first request that needs it

        vocabulary = self._tokenizer.backend_tokenizer
        added = vocabulary.get_added_tokens_decoder()
        # llguidance takes tokens such as Qwen's <tool_call> for special ones.
        special = {token.content: i for i, token in added.items() if token.special or TAG.fullmatch(token.content)}
        functions = [(tool.function.name, tool.function.parameters) for tool in fields.forced or fields.offered]
        calls = CallGrammars(self.family, functions, fields.may_repeat, special)
        source: str = LLMatcher.grammar_from_lark(calls.forced() if is_alone else calls.allowed())
        if len(source) > MOST_CHARS:
            raise RequestError(
                f"tools make a grammar of {len(source)} characters; it must have at most {MOST_CHARS}", "tools"
            )
        return source

    def _check(self, messages: Sequence[ChatMessage], has_tools: bool, variables: dict[str, Any], source: str) -> None:
        """Refuse what the template would silently ignore."""
        if has_tools and not _mentions(source, "tools"):
            raise RequestError("tools: this model's chat template takes none; leave them out", "tools")
        if has_tools and self.family is None:
            raise RequestError(
                "tools: the server does not know how this model writes calls; leave them out, or start it with "
                f"--tool-parser {', '.join(FAMILIES)}",
                "tools",
            )
        for name, value in variables.items():
            if name == THINKING and (self.has_reasoning if value is True else value is False):
                continue  # the server itself closes the thought where the template does not
            if name in self._reserved or not _mentions(source, name):
                param = name if name == EFFORT else "chat_template_kwargs"
                raise RequestError(f"{param}: this model's chat template takes no {name}; leave it out", param)
        for i, message in enumerate(messages):
            if (message.tool_calls and not _mentions(source, "tool_calls")) or (
                message.role == "tool" and not re.search("tool|ipython", source)
            ):
                raise RequestError(f"messages[{i}]: this model's chat template takes no tools", f"messages[{i}]")

    def _turn(self, number: int, message: ChatMessage, source: str) -> dict[str, Any]:
        is_older = message.role == "developer" and "developer" not in source
        turn: dict[str, Any] = {"role": "system" if is_older else message.role, "content": message.content}
        given = {"name": message.name, "tool_call_id": message.tool_call_id}
        given["reasoning_content"] = message.reasoning_content or None
        turn |= {key: value for key, value in given.items() if value is not None}
        if message.tool_calls:
            turn["tool_calls"] = [
                _call(call, f"messages[{number}].tool_calls[{i}].function.arguments")
                for i, call in enumerate(message.tool_calls)
            ]
        return turn


def _source(tokenizer: PreTrainedTokenizerFast, tools: list[dict[str, Any]] | None) -> str:
    """The template for prompts with or without tools; "" if there is none."""
    if not tokenizer.chat_template:
        return ""
    try:
        return str(tokenizer.get_chat_template(None, tools))
    except ValueError:  # several templates, none of them for this
        return ""


def _mentions(source: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", source) is not None


def _call(call: ToolCall, param: str) -> dict[str, Any]:
    """A call as templates expect it, with its arguments as an object."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"{param} must be a text that holds a JSON object", param)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
