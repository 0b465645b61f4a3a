"""Calls of tools in the text of an answer, for all families that write arguments as JSON."""

from __future__ import annotations

from collections.abc import Callable

from app.api.tools.call import CallReader
from app.api.tools.families import CallFamily
from app.api.tools.parts import SPACES, MarkFinder, Part, TextPart

BETWEEN = frozenset(",;}]" + SPACES)  # between two calls; a surplus closing bracket does no harm


class CallParser:
    """Reads a growing text into content and calls.

    A text that only looks like the beginning of a call is content, unchanged. Spaces around calls are dropped. A call
    whose text was cut off is a call with the arguments so far.

    Args:
        offered: names of the tools; without a mark, an object with another name is not a call.
        most: calls that count; the others are dropped. None: any number.
    """

    def __init__(self, family: CallFamily, offered: frozenset[str], most: int | None = None) -> None:
        self._family = family
        self._offered = offered
        self._most = most
        self.n_calls = 0
        self._block_calls = 0  # since the last mark
        self._is_fresh = False  # directly after a call
        self._lost = ""  # the mark and all that was read since the last text or call
        self._closing = ""  # a possible beginning of the closing mark
        self._is_marked = False  # a mark precedes the current or next call
        self._finder = MarkFinder(family.opens)
        self._call: CallReader | None = None
        self._state: Callable[[str, list[Part]], str] = self._at_start if family.is_bare else self._outside

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            text = self._state(text, parts)
        return self._counted(parts)

    def flush(self) -> list[Part]:
        parts: list[Part] = []
        lost, self._lost = self._lost, ""
        if self._call is not None:
            if not self._call.has_begun:
                self._write(lost + self._call.raw, parts)
        elif not self._block_calls:
            self._write(lost + self._closing, parts)
        rest = self._finder.flush()
        self._write(rest.rstrip(SPACES) if self.n_calls else rest, parts)
        return self._counted(parts)

    def _counted(self, parts: list[Part]) -> list[Part]:
        if self._most is None:
            return parts
        return [part for part in parts if isinstance(part, TextPart) or getattr(part, "index", 0) < self._most]

    def _write(self, text: str, parts: list[Part]) -> None:
        text = text.lstrip(SPACES) if self._is_fresh else text
        if text:
            self._is_fresh = False
            parts.append(TextPart(text))

    def _at_start(self, text: str, parts: list[Part]) -> str:
        """Nothing but spaces so far, of a family whose calls need no mark."""
        rest = text.lstrip(SPACES)
        self._lost += text[: len(text) - len(rest)]
        if not rest:
            return ""
        if rest[0] == "{":
            self._begin(rest[0])
            return rest
        lost, self._lost = self._lost, ""
        self._state = self._outside
        return lost + rest

    def _outside(self, text: str, parts: list[Part]) -> str:
        before, mark, rest = self._finder.push(text)
        self._write(before, parts)
        if mark is not None:
            self._lost, self._block_calls, self._is_marked = mark, 0, True
            self._state = self._between
        return rest

    def _between(self, text: str, parts: list[Part]) -> str:
        """After a mark or a call, where a call, the closing mark or text may follow."""
        for at, char in enumerate(text):
            if self._family.close.startswith(self._closing + char):
                self._closing += char
                if self._closing == self._family.close:
                    return self._leave(text[at + 1 :], parts)
            elif self._closing:
                return self._leave(self._closing + text[at:], parts, is_closed=False)
            elif self._opens(char):
                self._begin(char)
                return text[at:]
            elif char in BETWEEN or (char == "[" and not self._block_calls):
                self._lost += char
            else:
                return self._leave(text[at:], parts, is_closed=False)
        return ""

    def _opens(self, char: str) -> bool:
        return char == "{" or (self._family.is_named and not self._block_calls and (char.isalnum() or char == "_"))

    def _begin(self, char: str) -> None:
        offered = None if self._is_marked else self._offered
        self._call = CallReader(self.n_calls, self._family.new_id, offered, is_named=char != "{")
        self._state = self._inside

    def _inside(self, text: str, parts: list[Part]) -> str:
        call = self._call
        assert call is not None
        rest = call.push(text, parts)
        if call.is_done:
            self.n_calls += 1
            self._block_calls += 1
            self._lost, self._call, self._is_fresh = "", None, True
            self._state = self._between
        elif call.is_refused:
            self._call = None
            text, self._lost = self._lost + call.raw, ""
            self._write(text, parts)
            self._state = self._outside
        return rest

    def _leave(self, rest: str, parts: list[Part], *, is_closed: bool = True) -> str:
        """Leave the block; a block without calls is text."""
        lost = self._lost + (self._closing if is_closed else "")
        self._lost = self._closing = ""
        if not self._block_calls:
            self._write(lost, parts)
        self._state = self._outside
        return rest
