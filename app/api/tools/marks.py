"""Finds marks such as ``<tool_call>`` in a growing text, wherever it is cut."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.tools.call import SPACES

MAX_SPACES = 256  # that are held back before a mark


def held_back(text: str, marks: Sequence[str]) -> int:
    """The most characters at the end of ``text`` that may be the beginning of a mark."""
    longest = max(map(len, marks), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0


class MarkFinder:
    """Cuts a growing text at the first mark. Holds back spaces before it, so that the caller may drop them."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = marks
        self.held = ""  # spaces and a possible beginning of a mark

    def push(self, text: str) -> tuple[str, str | None, str]:
        """Returns the text before a mark; the mark with the spaces before it, or None; and the text after it."""
        text = self.held + text
        found = [(at, -len(mark), mark) for mark in self._marks if (at := text.find(mark)) >= 0]
        if found:
            at, _, mark = min(found)
            end, self.held = _without_spaces(text[:at]), ""
            return text[:end], text[end:at] + mark, text[at + len(mark) :]
        end = _without_spaces(text[: len(text) - held_back(text, self._marks)])
        self.held = text[end:]
        return text[:end], None, ""

    def flush(self) -> str:
        """Returns what was held back; the text is complete."""
        rest, self.held = self.held, ""
        return rest


def _without_spaces(text: str) -> int:
    """Where the spaces at the end of the text begin; at most ``MAX_SPACES`` of them count."""
    return max(len(text.rstrip(SPACES)), len(text) - MAX_SPACES)
