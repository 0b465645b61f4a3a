"""The parts of an answer: reasoning, content and calls of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from app.api.tools.families import CallFamily
from engine.text import Detokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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


class AnswerForm(msgspec.Struct, frozen=True):
    """How the text of one choice is made of its tokens, and the parts that it may have in addition to content."""

    family: CallFamily | None = None  # None: no calls
    offered: frozenset[str] = frozenset()  # names of the tools
    most_calls: int | None = None  # the others are dropped; None: any number
    has_reasoning: bool = False
    is_open: bool = False  # the text begins inside the reasoning
    keeps_spaces: bool = False  # a grammar governs the content: only line breaks after the reasoning are dropped
    skip_special_tokens: bool = True
    includes_stop: bool = False  # the stop string, or a stop id's text, ends the text
    shown: frozenset[int] = frozenset()  # special tokens that the text shows nevertheless: marks that are read
    echo: str = ""  # the text begins with it
    is_echo_alone: bool = False  # and has nothing else: the engine's one token is dropped
    call_salt: str = ""  # random; the ids of its calls follow from it

    def detokenizer(self, tokenizer: PreTrainedTokenizerFast) -> Detokenizer:
        return Detokenizer(tokenizer, self.skip_special_tokens, self.shown)

    @property
    def has_parts(self) -> bool:
        """Whether the text may have anything but content."""
        return self.family is not None or self.has_reasoning
