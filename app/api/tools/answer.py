"""Reads the text of an answer into its parts: reasoning first, then content and calls of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from math import inf
from typing import TypeVar

from app.api.tools.families import CLOSE, OPEN, CallFamily
from app.api.tools.parts import AnswerForm, Arguments, CallBegin, Part, Reasoning, TextPart
from engine.grammar.thoughts import MOST_NEWLINES

T = TypeVar("T")
Steps = Generator[None, None, T]  # pauses until more text has come or the text is complete

SPACES = " \t\r\n"
BETWEEN = ",;}]" + SPACES  # between two calls; a surplus closing bracket does no harm
ENDS_LITERAL = ",}]" + SPACES
ARGUMENT_KEYS = ("arguments", "parameters")
USUAL_KEYS = ("name", *ARGUMENT_KEYS, "type", "id")
NO_ARGUMENTS = "{}"
NAMED = re.compile(r"([\w.:-]{1,128})\s*(\[CALL_ID\]\w+)?(\[ARGS\])?\s*", re.ASCII)  # before the arguments
IN_NAMED = re.compile(r"[\w.:\-\[\]\s]", re.ASCII)
MAX_NAMED = 256  # characters before the arguments
MOST_SPACES = 256  # held back before a possible mark: a model may write them without end


class AnswerReader:
    """Reads a growing text; the parts do not depend on where it is cut.

    A text that only looks like the beginning of a call is content, unchanged. Spaces around reasoning and calls are
    dropped. A call whose text was cut off is a call with the arguments so far.
    """

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self.is_inside = False  # the text so far ends inside the reasoning
        self.n_calls = 0
        self._text = ""  # that is not part of anything yet
        self._at = 0  # what comes before is read
        self._is_complete = False
        self._parts: list[Part] = []
        self._steps = self._read()
        next(self._steps)

    def push(self, text: str) -> list[Part]:
        """Read on; returns the parts that became certain."""
        self._text += text
        next(self._steps, None)
        parts, self._parts = self._parts, []
        most = self._form.most_calls
        return [part for part in parts if most is None or getattr(part, "index", 0) < most]

    def flush(self) -> list[Part]:
        """Returns the parts that were held back; the text is complete."""
        self._is_complete = True
        return self.push("")

    def _read(self) -> Steps[None]:
        family = self._form.family
        if self._form.has_reasoning:
            yield from self._read_reasoning()
        while family is None:
            self._at = len(self._text)
            self._add(TextPart(self._cut()))
            yield
        if family.is_bare:
            if (yield from self._skip(SPACES)) == "{":
                yield from self._read_calls(family, self._form.offered)
            else:
                self._at = 0
        while (yield from self._read_until(family.opens, TextPart)):
            yield from self._read_calls(family, None)

    def _read_reasoning(self) -> Steps[None]:
        """Read the reasoning, which comes first or not at all."""
        if not self._form.is_open:
            yield from self._skip(SPACES)
            if (yield from self._take(OPEN)) != OPEN:
                self._at = 0
                return
        self.is_inside = True
        yield from self._skip(SPACES)
        self._cut()
        yield from self._read_until(CLOSE, Reasoning)
        self.is_inside = False
        self._cut()
        if self._form.keeps_spaces:
            yield from self._skip("\n", MOST_NEWLINES)
        else:
            yield from self._skip(SPACES)
        self._cut()

    def _read_until(self, mark: str, kind: type[TextPart | Reasoning]) -> Steps[bool]:
        """Pass on what comes before a mark and the spaces before it, and read the mark; False: there is none."""
        while True:
            end = self._text.find(mark)
            has_mark = end >= 0
            if not has_mark:
                held = next(n for n in range(len(mark) - 1, -1, -1) if self._text.endswith(mark[:n]))
                end = len(self._text) - (0 if self._is_complete else held)
            before = self._text[:end]
            if has_mark or not self._is_complete or kind is Reasoning or self.n_calls:
                before = before[: max(len(before.rstrip(SPACES)), len(before) - MOST_SPACES)]
            self._add(kind(before))
            self._text = self._text[len(before) :]
            self._at = end - len(before) + has_mark * len(mark)
            if has_mark or self._is_complete:
                return has_mark
            yield

    def _read_calls(self, family: CallFamily, offered: frozenset[str] | None) -> Steps[None]:
        """Read the calls of one block.

        ``offered`` are the only names that a call may have if no mark precedes it; then an object that has another key
        before the name is not a call either.
        """
        first = self.n_calls
        while char := (yield from self._peek()):
            before = self.n_calls
            if char == "{":
                yield from self._read_json_call(family, offered)
            elif family.is_named and before == first and (char.isalnum() or char == "_"):
                yield from self._read_named_call(family)
            elif char in BETWEEN or (char == "[" and before == first):
                self._at += 1
                continue
            else:
                yield from self._take(family.close)
                break
            if self.n_calls == before:  # it is text
                self._add(TextPart(self._cut().lstrip(SPACES) if before > first else self._cut()))
                return
            self._cut()
        if self.n_calls == first:
            self._add(TextPart(self._cut()))
        else:
            yield from self._skip(SPACES)
            self._cut()

    def _read_json_call(self, family: CallFamily, offered: frozenset[str] | None) -> Steps[None]:
        """Read ``{"name": .., "arguments": {..}}`` in any order; ``parameters`` may stand for ``arguments``.

        Arguments that are a string are the JSON in it; missing arguments are ``{}``. Other keys are ignored.
        """
        name = arguments = ""
        has_begun = False
        self._at += 1  # the opening brace
        while (yield from self._skip(SPACES + ",")) == '"':
            key = yield from self._read_string()
            if offered is not None and not name and key not in USUAL_KEYS:
                return
            char = yield from self._skip(SPACES + ":")
            if key == "name" and not name:
                name = (yield from self._read_string()) if char == '"' else ""
                if not (name if offered is None else name in offered):
                    return
            elif key in ARGUMENT_KEYS and not arguments and char != "n":  # of null
                if char == '"':
                    arguments = (yield from self._read_string()) or NO_ARGUMENTS
                elif char == "{" and name:
                    has_begun, arguments = True, char
                    yield from self._pass_call(family, name)
                elif char == "{":
                    start = self._at
                    yield from self._read_value()
                    arguments = self._text[start : self._at]
                else:
                    return
            else:
                yield from self._read_value()
            if name and arguments and not has_begun:
                has_begun = True
                self._begin_call(family, name, arguments)
        if (yield from self._peek()) == "}":
            self._at += 1
            if name and not has_begun:
                self._begin_call(family, name, NO_ARGUMENTS)

    def _read_named_call(self, family: CallFamily) -> Steps[None]:
        """Read ``name[ARGS]{..}``, ``name[CALL_ID]id[ARGS]{..}`` or ``name{..}``, Mistral's newer forms."""
        start = self._at
        while (char := (yield from self._peek())) != "{":
            if self._at - start == MAX_NAMED or not IN_NAMED.match(char):
                self._at = start
                return
            self._at += 1
        if found := NAMED.fullmatch(self._text, start, self._at):  # the server replaces the model's own id
            yield from self._pass_call(family, found[1])
        else:
            self._at = start

    def _pass_call(self, family: CallFamily, name: str) -> Steps[None]:
        """Begin a call, and pass on its arguments, an object, as they come."""
        index = self.n_calls
        self._begin_call(family, name, "")
        self._cut()
        for _ in self._read_value():
            self._add(Arguments(index, self._cut()))
            yield
        self._add(Arguments(index, self._cut()))

    def _read_value(self) -> Steps[None]:
        """Read a JSON value; brackets are counted, not compared."""
        depth, in_string, is_escaped = 0, False, False
        while char := (yield from self._peek()):
            if not depth and not in_string and char in ENDS_LITERAL:
                return
            self._at += 1
            if in_string:
                in_string = is_escaped or char != '"'
                is_escaped = char == "\\" and not is_escaped
            elif char == '"':
                in_string = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
            else:
                continue
            if not depth and not in_string:
                return

    def _read_string(self) -> Steps[str]:
        """Read a JSON string; returns "" if its escapes are wrong or it does not end."""
        start = self._at
        yield from self._read_value()
        try:
            found = str(json.loads(self._text[start : self._at], strict=False))
            found.encode()  # lone surrogates have no UTF-8
            return found
        except ValueError:
            return ""

    def _take(self, mark: str) -> Steps[str]:
        """Read a mark, or at the end of the text a part of one; returns what was read."""
        while not self._is_complete and len(self._text) < self._at + len(mark):
            if not mark.startswith(self._text[self._at :]):
                break
            yield
        found = self._text[self._at : self._at + len(mark)]
        if found != mark and not (self._is_complete and mark.startswith(found)):
            return ""
        self._at += len(found)
        return found

    def _skip(self, chars: str, most: float = inf) -> Steps[str]:
        """Read over characters; returns the next one, "" at the end of the text."""
        while (char := (yield from self._peek())) and char in chars and most > 0:
            self._at += 1
            most -= 1
        return char

    def _peek(self) -> Steps[str]:
        """Returns the next character without reading it; "" at the end of the text."""
        while self._at == len(self._text) and not self._is_complete:
            yield
        return self._text[self._at : self._at + 1]

    def _cut(self) -> str:
        """Take off what was read."""
        text, self._text, self._at = self._text[: self._at], self._text[self._at :], 0
        return text

    def _begin_call(self, family: CallFamily, name: str, arguments: str) -> None:
        self._parts.append(CallBegin(self.n_calls, family.call_id(self._form.call_salt, self.n_calls), name))
        self._add(Arguments(self.n_calls, arguments))
        self.n_calls += 1

    def _add(self, part: TextPart | Reasoning | Arguments) -> None:
        if part.text:
            self._parts.append(part)
