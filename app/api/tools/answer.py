"""Reads the text of an answer into its parts: reasoning first, then content and calls of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from app.api.tools.calls import CallParser
from app.api.tools.families import CallFamily
from app.api.tools.parts import CallBegin, Part, TextPart, joined
from app.api.tools.reasoning import ReasoningReader
from engine.text import Detokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class AnswerForm(msgspec.Struct, frozen=True):
    """How the text of one choice is made of its tokens, and the parts that it may have in addition to content."""

    family: CallFamily | None = None  # None: no calls
    offered: frozenset[str] = frozenset()  # names of the tools
    most_calls: int | None = None  # None: any number
    has_reasoning: bool = False
    is_open: bool = False  # the text begins inside the reasoning
    keeps_spaces: bool = False  # a grammar governs the content, so its own spaces stay
    skip_special_tokens: bool = True
    includes_stop: bool = False  # the stop string, or a stop id's text, ends the text
    shown: frozenset[int] = frozenset()  # special tokens that the text shows nevertheless: marks that are read
    echo: str = ""  # the text begins with it
    is_echo_alone: bool = False  # and has nothing else: the engine's one token is dropped

    def detokenizer(self, tokenizer: PreTrainedTokenizerFast) -> Detokenizer:
        return Detokenizer(tokenizer, self.skip_special_tokens, self.shown)

    def reader(self) -> AnswerReader | None:
        """Reads the text into parts; None: it has only content."""
        return None if self.family is None and not self.has_reasoning else AnswerReader(self)

    def reasoning(self) -> ReasoningReader | None:
        return ReasoningReader(is_open=self.is_open, keeps_spaces=self.keeps_spaces) if self.has_reasoning else None


class AnswerReader:
    """Reads a growing text; the parts do not depend on where it is cut."""

    def __init__(self, form: AnswerForm) -> None:
        self._reasoning = form.reasoning()
        self._calls = None if form.family is None else CallParser(form.family, form.offered, form.most_calls)
        self.has_calls = False  # whether any call was read

    def push(self, text: str) -> list[Part]:
        """Read on; returns the parts that became certain."""
        parts: list[Part] = []
        if self._reasoning is not None:
            text = self._reasoning.push(text, parts)
        return self._noted([*parts, *self._content(text)])

    def flush(self) -> list[Part]:
        """Returns the parts that were held back; the text is complete."""
        parts: list[Part] = []
        if self._reasoning is not None:
            parts += self._content(self._reasoning.flush(parts))
        if self._calls is not None:
            parts += self._calls.flush()
        return self._noted(parts)

    def _content(self, text: str) -> list[Part]:
        if self._calls is not None:
            return self._calls.push(text)
        return [TextPart(text)] if text else []

    def _noted(self, parts: list[Part]) -> list[Part]:
        self.has_calls = self.has_calls or any(isinstance(part, CallBegin) for part in parts)
        return joined(parts)
