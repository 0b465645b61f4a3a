"""Follows one text through its thought, then through every grammar that the text may still satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from engine.grammar.thoughts import AFTER, INSIDE, MOST_NEWLINES, OPENING, ThoughtTokens
from engine.grammar.words import Words

if TYPE_CHECKING:
    from llguidance import LLMatcher


class AnswerMatcher:
    """Matches an answer that satisfies at least one grammar, after an optional thought.

    Grammars that allow the text so far are followed in parallel: one lexer for all of them would choose too early.

    Args:
        grammars: matchers at the beginning of a text; only copies of them move.
        n_words: words of 32 bits in a mask.
        thought: how tokens move through the thought; None: the answer begins at once.
    """

    def __init__(self, grammars: Sequence[LLMatcher], n_words: int, thought: ThoughtTokens | None = None) -> None:
        self._grammars, self._n_words, self._thought = grammars, n_words, thought
        self._place = None if thought is None else thought.start  # None: the answer has begun
        self._live = [*grammars] if self._place is None or self._place.phase == OPENING else []

    def copy(self) -> AnswerMatcher:
        """Return an independent matcher at the same place of the same text."""
        made = copy(self)
        made._live = [matcher.deep_copy() for matcher in self._live]
        return made

    def words(self) -> tuple[Words, str]:
        """Return the mask of tokens that may follow, and the reason if the mask is empty."""
        words, error = np.zeros(self._n_words, np.uint32), ""
        for matcher in self._live:
            raw = np.frombuffer(matcher.compute_bitmask(), np.uint32)
            if matcher.is_error():
                error = _first_line(matcher)
            else:
                words[: len(raw)] |= raw[: len(words)]
        if self._thought is not None and self._place is not None:
            if self._place.phase == AFTER:  # a line break there never belongs to the answer
                words &= ~self._thought.newlines
            words |= self._thought.words(self._place)
        return words, "" if words.any() else error or "no token of the vocabulary can follow"

    def advance(self, token: int) -> str:
        """Move past a token; returns the reason if the token cannot follow, else ""."""
        before, self._place = self._place, None
        if self._thought is not None and before is not None:
            self._place = self._thought.move(before, token)
            if self._place is not None and self._place.phase != OPENING:
                return self._think(before.phase)
            if before.phase == AFTER and self._thought.begins_line(token):
                self._live = []
        failed = [matcher for matcher in self._live if not matcher.consume_token(token)]
        self._live = [matcher for matcher in self._live if matcher not in failed]
        if self._live or self._place is not None:
            return ""
        return (_first_line(failed[0]) if failed else "") or "the grammar does not allow it"

    def forced(self) -> list[int]:
        """Return the tokens of the text that the one remaining grammar forces, as the tokenizer cuts it; often none."""
        if self._place is not None or len(self._live) != 1:
            return []
        tokens: list[int] = self._live[0].compute_ff_tokens()
        return tokens

    def _think(self, before: int) -> str:
        """Restart the grammars: the token belonged to the thought, and the answer begins after it."""
        assert self._place is not None
        if self._place.phase == INSIDE:
            self._live = []
        elif before != AFTER:
            self._live = [matcher.deep_copy() for matcher in self._grammars]
        if self._place == (AFTER, MOST_NEWLINES):
            self._place = None
        return ""


def _first_line(matcher: LLMatcher) -> str:
    return matcher.get_error().partition("\n")[0]
