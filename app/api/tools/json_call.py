"""A call that the model writes as JSON, read character by character: nothing is decided later because of how the text
was cut, and arguments go on as they come."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Protocol

from app.api.tools.parts import Arguments, CallBegin, Part

SPACES = " \t\r\n"
ENDS_LITERAL = frozenset(",}]" + SPACES)
NAME_KEYS = ("name",)
ARGUMENT_KEYS = ("arguments", "parameters")
MAX_NAME = 128  # characters
NAME_CHARACTER = re.compile(r"[\w.:-]", re.ASCII)
USUAL_KEYS = (*NAME_KEYS, *ARGUMENT_KEYS, "type", "id")
NO_ARGUMENTS = "{}"


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
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._in_string = False
                self.is_complete = not self._depth
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


class Call(Protocol):
    """One call, being read."""

    is_done: bool  # the call is complete; what follows is not part of it
    is_refused: bool  # it is none: ``raw`` is text
    raw: str  # all that was read of it, until it began

    def push(self, text: str, parts: list[Part]) -> str:
        """Read on, and append what became certain to ``parts``; returns what is behind the call."""
        ...


class CallWriter:
    """Writes one call's parts: the name once it is certain that this is a call, then arguments as they come.

    Args:
        index: of the call in the answer.
        new_id: makes its id.
        accepts: whether a tool of this name can be meant.
    """

    def __init__(self, index: int, new_id: Callable[[], str], accepts: Callable[[str], bool]) -> None:
        self._index, self._new_id, self._accepts = index, new_id, accepts
        self.has_begun = False
        self._waiting: list[str] = []  # characters of arguments

    def accepts(self, name: str) -> bool:
        """Whether a tool of this name can be meant."""
        return bool(name) and self._accepts(name)

    def begin(self, name: str, parts: list[Part]) -> bool:
        """Write the beginning; returns False if no such tool can be meant."""
        if not self.accepts(name):
            return False
        self.has_begun = True
        parts.append(CallBegin(self._index, self._new_id(), name))
        return True

    def add(self, text: str) -> None:
        """Some of the arguments."""
        self._waiting.append(text)

    def write(self, parts: list[Part]) -> None:
        """Write the arguments that wait, if the call has begun."""
        if self.has_begun and self._waiting:
            parts.append(Arguments(self._index, "".join(self._waiting)))
            self._waiting.clear()


class JsonCall:
    """``{"name": .., "arguments": {..}}``, in any order, ``parameters`` for ``arguments``, other keys ignored.

    Arguments that are a string which holds JSON are taken out of it; a call without arguments has none, ``{}``.

    Args:
        writer: of its parts.
        is_doubtful: no mark says that this is a call: an object that has another key before the name is none.
    """

    def __init__(self, writer: CallWriter, *, is_doubtful: bool = False) -> None:
        self._is_doubtful = is_doubtful
        self.is_done = self.is_refused = False
        self.raw = ""
        self._writer = writer
        self._name = ""
        self._key = ""
        self._has_arguments = False
        self._value = JsonValue()
        self._text: list[str] = []  # of the string that is being read
        self._state: Callable[[str, list[Part]], bool] = self._open

    def push(self, text: str, parts: list[Part]) -> str:
        """Read on, and append what became certain to ``parts``; returns what is behind the call."""
        for at, char in enumerate(text):
            taken = self._state(char, parts)
            if self.is_done or self.is_refused:
                self._keep(text[: at + taken])
                self._writer.write(parts)
                return text[at + taken :]
        self._keep(text)
        self._writer.write(parts)
        return ""

    def _keep(self, text: str) -> None:
        if not self._writer.has_begun:
            self.raw += text

    def _fail(self) -> bool:
        """This is no JSON: a call that has begun ends here, another is none."""
        self.is_done, self.is_refused = self._writer.has_begun, not self._writer.has_begun
        return False

    def _refuse(self) -> bool:
        """This is no call; the character that says so has been read."""
        self.is_refused = True
        return True

    def _open(self, char: str, parts: list[Part]) -> bool:
        if char != "{":
            return self._fail()
        self._state = self._before_key
        return True

    def _before_key(self, char: str, parts: list[Part]) -> bool:
        if char in SPACES:
            return True
        if char == "}":
            return self._end(parts)
        if char != '"':
            return self._fail()
        self._begin_value(char, self._in_key)
        return True

    def _in_key(self, char: str, parts: list[Part]) -> bool:
        self._collect(char)
        if self._value.is_complete:
            self._key = self._string() or ""
            self._state = self._before_value
            if self._is_doubtful and not self._name and self._key not in USUAL_KEYS:
                return self._refuse()
        return True

    def _before_value(self, char: str, parts: list[Part]) -> bool:
        if char in SPACES or char == ":":
            return True
        if self._key in NAME_KEYS and not self._name:
            if char != '"':
                return self._fail()
            self._begin_value(char, self._in_name)
        elif self._key in ARGUMENT_KEYS and not self._has_arguments:
            return self._begin_arguments(char, parts)
        else:
            self._begin_value(char, self._in_other)
        return True

    def _in_name(self, char: str, parts: list[Part]) -> bool:
        self._collect(char)
        if self._value.is_complete:
            self._name = self._string() or ""
            self._state = self._after_value
            if not self._writer.accepts(self._name):
                return self._refuse()
            if self._has_arguments:
                self._writer.begin(self._name, parts)
        return True

    def _begin_arguments(self, char: str, parts: list[Part]) -> bool:
        if char not in '{"n':
            return self._fail()
        if char == "n":  # null
            self._begin_value(char, self._in_other)
            return True
        if self._name and not self._writer.begin(self._name, parts):
            return self._fail()
        self._has_arguments = True
        self._begin_value(char, self._in_arguments if char == "{" else self._in_quoted)
        if char == "{":
            self._writer.add(char)
        return True

    def _in_arguments(self, char: str, parts: list[Part]) -> bool:
        self._value.takes(char)
        self._writer.add(char)
        if self._value.is_complete:
            self._state = self._after_value
        return True

    def _in_quoted(self, char: str, parts: list[Part]) -> bool:
        self._collect(char)
        if self._value.is_complete:
            self._writer.add(self._string() or NO_ARGUMENTS)
            self._state = self._after_value
        return True

    def _in_other(self, char: str, parts: list[Part]) -> bool:
        if not self._value.takes(char):
            return self._after_value(char, parts)
        if self._value.is_complete:
            self._state = self._after_value
        return True

    def _after_value(self, char: str, parts: list[Part]) -> bool:
        self._state = self._after_value
        if char in SPACES:
            return True
        if char == ",":
            self._state = self._before_key
            return True
        return self._end(parts) if char == "}" else self._fail()

    def _end(self, parts: list[Part]) -> bool:
        if not self._has_arguments:
            if not self._writer.begin(self._name, parts):
                return self._refuse()
            self._writer.add(NO_ARGUMENTS)
        elif not self._writer.has_begun:  # arguments, and no name
            return self._refuse()
        self.is_done = True
        return True

    def _begin_value(self, char: str, state: Callable[[str, list[Part]], bool]) -> None:
        self._value, self._text, self._state = JsonValue(), [char], state
        self._value.takes(char)

    def _collect(self, char: str) -> None:
        self._value.takes(char)
        self._text.append(char)

    def _string(self) -> str | None:
        """The string that was read; None if its escapes are wrong."""
        try:
            found: str = json.loads("".join(self._text), strict=False)
        except ValueError:
            return None
        return found


class NamedCall:
    """``name[ARGS]{..}``, ``name[CALL_ID]id[ARGS]{..}`` or ``name{..}``, as Mistral's newer tokenizers have it."""

    def __init__(self, writer: CallWriter) -> None:
        self.is_done = self.is_refused = False
        self.raw = ""
        self._writer = writer
        self._name = ""
        self._mark: str | None = None  # since its bracket
        self._marks = ""  # that were read
        self._value: JsonValue | None = None

    def push(self, text: str, parts: list[Part]) -> str:
        """Read on, and append what became certain to ``parts``; returns what is behind the call."""
        for at, char in enumerate(text):
            if self._value is not None:
                self._value.takes(char)
                self._writer.add(char)
                self.is_done = self._value.is_complete
            else:
                self._head(char, parts)
            if self.is_done or self.is_refused:
                self._keep(text[: at + self.is_done])
                self._writer.write(parts)
                return text[at + self.is_done :]
        self._keep(text)
        self._writer.write(parts)
        return ""

    def _keep(self, text: str) -> None:
        if not self._writer.has_begun:
            self.raw += text

    def _head(self, char: str, parts: list[Part]) -> None:
        """A character before the arguments."""
        if self._mark is not None:
            self._mark += char
            if not any(mark.startswith(self._mark) for mark in ("[ARGS]", "[CALL_ID]")):
                self.is_refused = True
            elif char == "]":
                self._marks, self._mark = self._marks + self._mark, None
        elif char == "[":
            self._mark = char
        elif char == "{":
            self.is_refused = not self._writer.begin(self._name, parts)
            self._value = JsonValue()
            self._value.takes(char)
            self._writer.add(char)
        elif char in SPACES:
            self.is_refused = not self._name
        elif self._marks == "" and len(self._name) < MAX_NAME and NAME_CHARACTER.match(char):
            self._name += char
        else:  # only an id of the model's own may stand behind a mark; ids are the server's
            self.is_refused = not self._marks.endswith("[CALL_ID]") or not char.isalnum()
