"""A call whose name stands before its JSON arguments."""

from __future__ import annotations

import re

from app.api.tools.call import SPACES, Call, CallWriter, JsonValue
from app.api.tools.parts import Part

MAX_NAME = 128  # characters
NAME_CHARACTER = re.compile(r"[\w.:-]", re.ASCII)


class NamedCall(Call):
    """``name[ARGS]{..}``, ``name[CALL_ID]id[ARGS]{..}`` or ``name{..}``, as Mistral's newer tokenizers have it."""

    def __init__(self, writer: CallWriter) -> None:
        super().__init__(writer)
        self._name = ""
        self._mark: str | None = None  # since its bracket
        self._marks = ""  # that were read
        self._value: JsonValue | None = None

    def _take(self, char: str, parts: list[Part]) -> bool:
        if self._value is None:
            self._head(char, parts)
            return not self.is_refused
        self._value.takes(char)
        self._writer.add(char)
        self.is_done = self._value.is_complete
        return True

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
