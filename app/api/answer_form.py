"""How the text of a choice is written: which special tokens it has, how it ends, what it is read into."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from app.api.requests.schemas import GenerationRequest
from app.api.tools.answer import AnswerFormat, AnswerReader
from app.api.tools.reasoning import CLOSE, OPEN
from engine.text import Detokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class AnswerForm(msgspec.Struct, frozen=True):
    """The form of one choice's text."""

    skip_special_tokens: bool = True
    includes_stop: bool = False  # the stop string, or a stop id's text, ends the text
    shown: frozenset[int] = frozenset()  # special tokens that have text nevertheless: marks that are read
    echo: str = ""  # the text begins with it
    is_echo_alone: bool = False  # and has nothing else: the engine's one token is dropped
    reading: AnswerFormat | None = None  # None: the text is content as it is

    @staticmethod
    def of(body: GenerationRequest, reading: AnswerFormat | None, tokenizer: PreTrainedTokenizerFast) -> AnswerForm:
        """The form that a body asks for."""
        family = None if reading is None else reading.family
        marks = () if family is None else family.marks
        if reading is not None and reading.has_reasoning:
            marks = (*marks, OPEN, CLOSE)
        vocabulary = tokenizer.backend_tokenizer
        ids = (vocabulary.token_to_id(mark) for mark in marks)
        return AnswerForm(
            body.skip_special_tokens,
            body.include_stop_str_in_output,
            frozenset(found for found in ids if found is not None),
            is_echo_alone=body.token_limit == 0,
            reading=reading,
        )

    def detokenizer(self, tokenizer: PreTrainedTokenizerFast) -> Detokenizer:
        """Makes the text."""
        return Detokenizer(tokenizer, self.skip_special_tokens, self.shown)

    def reader(self) -> AnswerReader | None:
        """Reads the text into parts; None: it has only content."""
        return None if self.reading is None else AnswerReader(self.reading)


PLAIN = AnswerForm()
