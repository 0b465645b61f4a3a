"""Fields that prescribe the form of an answer, OpenAI's and vLLM's, and the grammar built from them."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, field_validator, model_validator

from app.api.requests.parsing import Strict, refuse
from engine.grammar.grammar import MOST_CHARS, Grammar
from engine.grammar.schemas import LITERAL
from engine.grammar.work_limits import UNFORCED

MOST_DEPTH = 32  # arrays and objects within each other in a schema, brackets within each other in a grammar
MOST_RULES = 500  # lines of a grammar
MOST_REGEX = 4096  # characters
MOST_LLAMA, MOST_LLAMA_RULES = 4096, 64  # characters and rules in llama.cpp's form; translating takes up to 50 ms
MOST_CHOICES, MOST_CHOICE = 512, 256  # choices, and characters of one
MOST_PATTERN = 128  # characters of a whitespace pattern
OPERATOR = re.compile(r"&|~(?!\s*[0-9])")  # costs unbounded work; "~" before a number is a count

Source = Annotated[str, Field(min_length=1, max_length=MOST_CHARS)]
Regex = Annotated[str, Field(min_length=1, max_length=MOST_REGEX)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MOST_CHOICE)]], Field(min_length=1, max_length=MOST_CHOICES)
]
Schema = dict[str, Any] | bool
GUIDED = {"guided_json": "definition", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


def _schema_of(value: Any) -> Any:
    """Returns a schema, parsed if it is given as text; refuses one that is nested too deeply."""
    if isinstance(value, str):
        if len(value) > MOST_CHARS:
            raise refuse(f"has {len(value)} characters; it must have at most {MOST_CHARS}")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise refuse(f"must be a JSON schema, or one as text; this text is not JSON: {error}") from None
    if not isinstance(value, dict | bool):
        raise refuse("must be a JSON schema: an object, or true or false")
    level: list[Any] = [value] if isinstance(value, dict) else []
    depth = 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise refuse(f"is nested more than {MOST_DEPTH} deep")
        inner = (below for each in level for below in (each.values() if isinstance(each, dict) else each))
        level = [below for below in inner if isinstance(below, dict | list)]
    return value


def _brackets(value: str) -> str:
    """Returns a pattern or grammar; refuses one with brackets that are nested too deeply, as parsers recurse."""
    depth = deepest = 0
    for char in value:
        depth = max(0, depth + (char in "([{") - (char in ")]}"))  # a surplus closing bracket is in a text, or wrong
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        raise refuse(f"has brackets nested more than {MOST_DEPTH} deep")
    if value.count("\n") > MOST_RULES:
        raise refuse(f"has more than {MOST_RULES} lines")
    return value


class JsonSchema(Strict):
    """``response_format.json_schema``. Answers fit the schema whether or not it is ``strict``."""

    name: Annotated[str, Field(max_length=256)] = ""
    description: Annotated[str, Field(max_length=4096)] = ""
    definition: Schema = Field(alias="schema")
    strict: bool = False

    _read = field_validator("definition", mode="before")(_schema_of)


class ResponseFormat(Strict):
    """OpenAI's ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise refuse("must have json_schema if, and only if, its type is json_schema")
        return self


class StructuredOutputs(Strict):
    """vLLM's ``structured_outputs``: exactly one of the first five."""

    definition: Schema | None = Field(default=None, alias="json")
    regex: Regex | None = None
    choice: Choices | None = None
    grammar: Source | None = None
    json_object: bool = False
    disable_any_whitespace: bool = False
    whitespace: Literal["bounded", "any"] = "bounded"
    whitespace_pattern: Annotated[str, Field(min_length=1, max_length=MOST_PATTERN)] | None = None

    _read = field_validator("definition", mode="before")(_schema_of)
    _nested = field_validator("regex", "grammar", "whitespace_pattern")(_brackets)

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [self.definition is not None, bool(self.regex), bool(self.choice), bool(self.grammar), self.json_object]
        if sum(given) != 1:
            raise refuse("must have exactly one of json, regex, choice, grammar and json_object")
        if self.disable_any_whitespace + (self.whitespace == "any") + (self.whitespace_pattern is not None) > 1:
            raise refuse("must have at most one of disable_any_whitespace, whitespace_pattern and whitespace 'any'")
        return self


class StructuredFields(Strict):
    """The form of the answers."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Regex | None = None
    guided_choice: Choices | None = None
    guided_grammar: Source | None = None

    _read = field_validator("guided_json", mode="before")(_schema_of)
    _nested = field_validator("guided_regex", "guided_grammar")(_brackets)

    @cached_property
    def forms(self) -> dict[str, StructuredOutputs]:
        """The forms of the answer, by the name of the field that prescribes each."""
        found: dict[str, StructuredOutputs] = {}
        response_format, form = self.response_format, StructuredOutputs.model_construct
        if response_format is not None and response_format.json_schema is not None:
            found["response_format"] = form(definition=response_format.json_schema.definition)
        elif response_format is not None and response_format.type == "json_object":
            found["response_format"] = form(json_object=True)
        for field, name in GUIDED.items():
            if (value := getattr(self, field)) is not None:
                found[field] = form(**{name: value})
        return found if self.structured_outputs is None else found | {"structured_outputs": self.structured_outputs}

    @cached_property
    def grammar(self) -> Grammar | None:
        """The grammar of the answers; None: any text."""
        return next((_grammar_of(form, field) for field, form in self.forms.items()), None)

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if len(self.forms) > 1:
            raise refuse(f"{' and '.join(self.forms)} are given together; give only one of them")
        made, field = self.grammar, next(iter(self.forms), "")  # now, in a thread if the body is large
        if made is not None and len(made.source) > MOST_CHARS:
            raise refuse(f"{field} has a grammar of {len(made.source)} characters; it must have at most {MOST_CHARS}")
        if made is not None and getattr(self, "ignore_eos", False):
            raise refuse(f"ignore_eos is true, but {field} is given: its text must end")
        return self


def _grammar_of(form: StructuredOutputs, field: str) -> Grammar:
    from llguidance import LLMatcher  # with the first request that needs it

    if form.regex is not None:
        return Grammar(LLMatcher.grammar_from_regex(form.regex))
    if form.choice is not None:
        choices = (json.dumps(choice, ensure_ascii=False) for choice in dict.fromkeys(form.choice))
        return Grammar(LLMatcher.grammar_from_lark(f"start: {' | '.join(choices)}"))
    if form.grammar is not None:
        return Grammar(LLMatcher.grammar_from_lark(_lark_of(form.grammar, field)))
    schema = {"type": "object"} if form.json_object else form.definition
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    options: dict[str, Any] = {}  # the compiler bounds white space by the schema's depth
    if form.whitespace_pattern is not None:
        options = {"whitespace_pattern": form.whitespace_pattern}
    elif form.disable_any_whitespace or form.whitespace == "any":
        options = {"whitespace_flexible": form.whitespace == "any"}
    try:
        return Grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=cast("Any", options)))
    except ValueError as error:
        raise refuse(f"{field} has a schema that cannot be read: {error}") from None


def _lark_of(grammar: str, field: str) -> str:
    """Returns a grammar in Lark's form; translates llama.cpp's, whose rules have ``::=``."""
    if grammar.lstrip().startswith("{"):
        raise refuse(f"{field} is JSON; it must be in Lark's form, or in llama.cpp's")
    if "::=" in grammar:
        from llguidance.gbnf_to_lark import gbnf_to_lark

        n_rules = grammar.count("::=")
        if len(grammar) > MOST_LLAMA or n_rules > MOST_LLAMA_RULES:
            raise refuse(
                f"{field} has {len(grammar)} characters and {n_rules} rules; in llama.cpp's form it must have at most "
                f"{MOST_LLAMA} and {MOST_LLAMA_RULES}"
            )
        try:
            return UNFORCED + str(gbnf_to_lark(grammar))
        except Exception as error:
            raise refuse(f"{field} is a grammar that cannot be read: {error}") from None
    if found := OPERATOR.search(LITERAL.sub("", grammar)):
        raise refuse(f"{field} has {found[0]!r} between patterns; patterns must be written without '&' and '~'")
    return UNFORCED + grammar
