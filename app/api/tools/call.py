"""A call that a model writes, read character by character: how the text is cut decides nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator

from app.api.tools.parts import SPACES, Arguments, CallBegin, Part

ENDS_LITERAL = frozenset(",}]" + SPACES)
ARGUMENT_KEYS = ("arguments", "parameters")
USUAL_KEYS = ("name", *ARGUMENT_KEYS, "type", "id")
NO_ARGUMENTS = "{}"
MAX_NAME = 128  # characters
NAME_CHARACTER = re.compile(r"[\w.:-]", re.ASCII)

Steps = Generator[None, str, bool]  # takes characters; returns at its end whether the last one belongs to the call


class JsonValue:
    """Finds where a JSON value ends; brackets are counted, not compared."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_literal = False
        self.is_complete = False

    def takes(self, char: str) -> bool:
        """Whether the next character belongs to the value; False ends a number or a word."""
        if self._in_string:
            self._in_string = self._is_escaped or char != '"'
            self._is_escaped = char == "\\" and not self._is_escaped
            self.is_complete = not self._in_string and not self._depth
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]" and self._depth:
            self._depth -= 1
            self.is_complete = not self._depth
        elif not self._depth:
            if self._is_literal and char in ENDS_LITERAL:
                self.is_complete = True
                return False
            self._is_literal = True
        return True


class CallReader:
    """Reads one call. It begins once its name is certain, then passes its arguments on as they come.

    Args:
        index: of the call in the answer.
        new_id: returns its id.
        offered: the only names that a call may have, if no mark precedes it: then an object that has another key
            before the name is not a call either. None: any name.
        is_named: the name comes before the arguments; otherwise the call is one JSON object.
    """

    def __init__(
        self, index: int, new_id: Callable[[], str], offered: frozenset[str] | None, *, is_named: bool
    ) -> None:
        self._index, self._new_id, self._offered = index, new_id, offered
        self.has_begun = False
        self.is_done = False  # the call is complete; the text that follows is not part of it
        self.is_refused = False  # it is not a call: ``raw`` is text
        self.raw = ""  # all that was read before it began
        self._waiting: list[str] = []  # arguments that are not passed on yet
        self._parts: list[Part] = []
        self._steps: Steps = self._read_named() if is_named else self._read_json()
        next(self._steps)

    def push(self, text: str, parts: list[Part]) -> str:
        """Read on, and append what became certain to ``parts``; returns the text after the call."""
        self._parts, end = parts, len(text)
        for at, char in enumerate(text):
            try:
                self._steps.send(char)
            except StopIteration as stop:
                end = at + stop.value
                self.is_done, self.is_refused = self.has_begun, not self.has_begun
                break
        if not self.has_begun:
            self.raw += text[:end]
        elif self._waiting:
            parts.append(Arguments(self._index, "".join(self._waiting)))
            self._waiting.clear()
        return text[end:]

    def _read_json(self) -> Steps:
        """Read ``{"name": .., "arguments": {..}}`` in any order; ``parameters`` may stand for ``arguments``.

        Arguments that are a string are the JSON in it; missing arguments are ``{}``. Other keys are ignored.
        """
        name, has_arguments, separator = "", False, ","
        yield  # the opening brace
        while separator == ",":
            char = yield from _next_but(SPACES)
            if char == "}":
                separator = char
                break
            if char != '"':
                return False
            key = yield from _read_string()
            if self._offered is not None and not name and key not in USUAL_KEYS:
                return True
            char = yield from _next_but(SPACES + ":")
            if key == "name" and not name:
                if char != '"':
                    return False
                name = yield from _read_string()
                if not self._accepts(name):
                    return True
                if has_arguments:
                    self._begin(name)
            elif key in ARGUMENT_KEYS and not has_arguments and char != "n":  # of null
                if char not in '{"':
                    return False
                has_arguments = True
                if name:
                    self._begin(name)
                if char == "{":
                    yield from _read_value(char, self._waiting)
                else:
                    self._waiting.append((yield from _read_string()) or NO_ARGUMENTS)
            else:
                separator = yield from _skip_value(char)
                continue
            separator = yield from _next_but(SPACES)
        if separator != "}":
            return False
        if name and not has_arguments:
            self._begin(name)
            self._waiting.append(NO_ARGUMENTS)
        return True

    def _read_named(self) -> Steps:
        """Read ``name[ARGS]{..}``, ``name[CALL_ID]id[ARGS]{..}`` or ``name{..}``, Mistral's newer forms."""
        name = marks = mark = ""
        while (char := (yield)) != "{" or mark:
            if mark:
                mark += char
                if not any(known.startswith(mark) for known in ("[ARGS]", "[CALL_ID]")):
                    return False
                if char == "]":
                    marks, mark = marks + mark, ""
            elif char == "[":
                mark = char
            elif char in SPACES and name:
                continue
            elif not marks and len(name) < MAX_NAME and NAME_CHARACTER.match(char):
                name += char
            elif not marks.endswith("[CALL_ID]") or not char.isalnum():  # the model's own id, which the server replaces
                return False
        if not self._accepts(name):
            return False
        self._begin(name)
        yield from _read_value("{", self._waiting)
        return True

    def _accepts(self, name: str) -> bool:
        return bool(name) if self._offered is None else name in self._offered

    def _begin(self, name: str) -> None:
        self.has_begun = True
        self._parts.append(CallBegin(self._index, self._new_id(), name))


def _next_but(skipped: str) -> Generator[None, str, str]:
    while (char := (yield)) in skipped:
        pass
    return char


def _read_value(first: str, out: list[str]) -> Generator[None, str, None]:
    """Read an object or a string, whose first character was read, into ``out``."""
    value, char = JsonValue(), first
    while True:
        value.takes(char)
        out.append(char)
        if value.is_complete:
            return
        char = yield


def _read_string() -> Generator[None, str, str]:
    """Read a string whose first quote was read; returns "" if its escapes are wrong."""
    text: list[str] = []
    yield from _read_value('"', text)
    try:
        return str(json.loads("".join(text), strict=False))
    except ValueError:
        return ""


def _skip_value(first: str) -> Generator[None, str, str]:
    """Skip a value and the spaces after it; returns the next character."""
    value = JsonValue()
    value.takes(first)
    while value.takes(char := (yield)):
        if value.is_complete:
            return (yield from _next_but(SPACES))
    return char if char not in SPACES else (yield from _next_but(SPACES))
