"""A call that the model writes, read character by character: nothing is decided later because of how the text was cut,
and arguments go on as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from app.api.tools.parts import Arguments, CallBegin, Part

SPACES = " \t\r\n"
ENDS_LITERAL = frozenset(",}]" + SPACES)


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


class Call(ABC):
    """One call, being read.

    Args:
        writer: of its parts.
    """

    def __init__(self, writer: CallWriter) -> None:
        self._writer = writer
        self.is_done = False  # the call is complete; what follows is not part of it
        self.is_refused = False  # it is none: ``raw`` is text
        self.raw = ""  # all that was read of it, until it began

    def push(self, text: str, parts: list[Part]) -> str:
        """Read on, and append what became certain to ``parts``; returns what is behind the call."""
        for at, char in enumerate(text):
            taken = self._take(char, parts)
            if self.is_done or self.is_refused:
                self._keep(text[: at + taken], parts)
                return text[at + taken :]
        self._keep(text, parts)
        return ""

    def _keep(self, read: str, parts: list[Part]) -> None:
        if not self._writer.has_begun:
            self.raw += read
        self._writer.write(parts)

    @abstractmethod
    def _take(self, char: str, parts: list[Part]) -> bool:
        """Read one character; returns whether it belongs to the call."""
