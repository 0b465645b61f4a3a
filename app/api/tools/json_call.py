"""A call that the model writes as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

from app.api.tools.call import SPACES, Call, CallWriter, JsonValue
from app.api.tools.parts import Part

NAME_KEYS = ("name",)
ARGUMENT_KEYS = ("arguments", "parameters")
USUAL_KEYS = (*NAME_KEYS, *ARGUMENT_KEYS, "type", "id")
NO_ARGUMENTS = "{}"


class JsonCall(Call):
    """``{"name": .., "arguments": {..}}``, in any order, ``parameters`` for ``arguments``, other keys ignored.

    Arguments that are a string which holds JSON are taken out of it; a call without arguments has none, ``{}``.

    Args:
        writer: of its parts.
        is_doubtful: no mark says that this is a call: an object that has another key before the name is none.
    """

    def __init__(self, writer: CallWriter, *, is_doubtful: bool = False) -> None:
        super().__init__(writer)
        self._is_doubtful = is_doubtful
        self._name = ""
        self._key = ""
        self._has_arguments = False
        self._value = JsonValue()
        self._text: list[str] = []  # of the string that is being read
        self._state: Callable[[str, list[Part]], bool] = self._open

    def _take(self, char: str, parts: list[Part]) -> bool:
        return self._state(char, parts)

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
