"""Reads the reasoning before an answer, between ``<think>`` and ``</think>``."""

from __future__ import annotations

from collections.abc import Callable

from app.api.tools.parts import MAX_SPACES, SPACES, MarkFinder, Part, Reasoning
from engine.grammar.thoughts import MOST_NEWLINES

OPEN, CLOSE = "<think>", "</think>"


class ReasoningReader:
    """Takes the reasoning off the beginning of a growing text, and drops the spaces around it.

    Args:
        is_open: the prompt ends with ``<think>``: the text begins inside.
        keeps_spaces: a grammar governs the content: only line breaks after the reasoning are dropped.
    """

    def __init__(self, *, is_open: bool, keeps_spaces: bool = False) -> None:
        self._breaks = MOST_NEWLINES if keeps_spaces else None  # dropped at most
        self._held = ""
        self._finder = MarkFinder((CLOSE,))
        self._at_edge = True  # only spaces since the last mark
        self._state: Callable[[str, list[Part]], str] = self._inside if is_open else self._at_start

    @property
    def is_inside(self) -> bool:
        """Whether the text ends inside the reasoning."""
        return self._state == self._inside

    def push(self, text: str, parts: list[Part]) -> str:
        """Append the reasoning in the text to ``parts``; returns the content."""
        return self._state(text, parts)

    def flush(self, parts: list[Part]) -> str:
        """As ``push``, of the text that was held back: it is complete."""
        held, self._held = self._held, ""
        rest = self._finder.flush().rstrip(SPACES)
        if rest:
            parts.append(Reasoning(rest))
        return held

    def _at_start(self, text: str, parts: list[Part]) -> str:
        """Before any mark: reasoning comes first or not at all."""
        self._held += text
        begun = self._held.lstrip(SPACES)
        if begun.startswith(OPEN):
            self._held, self._state = "", self._inside
            return self._inside(begun[len(OPEN) :], parts)
        if OPEN.startswith(begun) and len(self._held) - len(begun) <= MAX_SPACES:
            return ""
        held, self._held = self._held, ""
        self._state = self._after
        self._at_edge = False
        return held

    def _inside(self, text: str, parts: list[Part]) -> str:
        if self._at_edge:
            text = text.lstrip(SPACES)
        if not text:
            return ""
        self._at_edge = False
        before, mark, rest = self._finder.push(text)
        if before:
            parts.append(Reasoning(before))
        if mark is None:
            return ""
        self._at_edge, self._state = True, self._after
        return self._after(rest, parts)

    def _after(self, text: str, parts: list[Part]) -> str:
        if self._at_edge:
            rest = text.lstrip(SPACES)
            if self._breaks is not None:
                dropped = min(len(text) - len(text.lstrip("\n")), self._breaks)
                self._breaks, rest = self._breaks - dropped, text[dropped:]
            text, self._at_edge = rest, not rest
        return text
