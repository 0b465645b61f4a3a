"""The parts of an answer, which are content, reasoning and calls of tools, and the marks between them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SPACES = " \t\r\n"
MAX_SPACES = 256  # that are held back before a mark


class TextPart(msgspec.Struct, frozen=True):
    """Some of the content."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Some of the reasoning before the content."""

    text: str


class CallBegin(msgspec.Struct, frozen=True):
    """The beginning of a call; its arguments follow."""

    index: int  # among the calls of the answer
    id: str
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """Some of a call's arguments, as the model wrote them: the pieces of a complete call are a JSON object."""

    index: int
    text: str


Part = TextPart | Reasoning | CallBegin | Arguments


def joined(parts: list[Part]) -> list[Part]:
    """Joins neighbours of one kind into one part."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        match last, part:
            case (TextPart(text=before), TextPart(text=text)):
                out[-1] = TextPart(before + text)
            case (Reasoning(text=before), Reasoning(text=text)):
                out[-1] = Reasoning(before + text)
            case (Arguments(index=i, text=before), Arguments(index=j, text=text)) if i == j:
                out[-1] = Arguments(i, before + text)
            case _:
                out.append(part)
    return out


def held_back(text: str, marks: Sequence[str]) -> int:
    """The most characters at the end of ``text`` that may be the beginning of a mark."""
    longest = max(map(len, marks), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0


class MarkFinder:
    """Cuts a growing text at the first mark, such as ``<tool_call>``. Holds back spaces before it."""

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
