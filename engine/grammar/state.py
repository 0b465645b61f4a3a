"""Where one text stands in its grammar: which tokens may follow, at the text's end and at every node of a tree.

A mask depends on the tokens before it alone, so it is the same whether they came one by one or were drafted. Masks are
words of 32 bits, the lowest bit the lowest id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.tree import ROOT, TokenTree

if TYPE_CHECKING:
    from llguidance import LLMatcher

Words = npt.NDArray[np.uint32]  # [ceil(vocab / 32)]


class GrammarState:
    """Grows with its text; ``rows`` looks ahead and comes back.

    Args:
        matcher: at the beginning of the text; owned by the state. None: there is none, ``error`` says why.
        eos_ids: tokens that end the text.
        vocab_size: of the model.
        error: as below.
    """

    def __init__(self, matcher: LLMatcher | None, eos_ids: Sequence[int], vocab_size: int, error: str = "") -> None:
        self._matcher = matcher
        self._eos_ids = frozenset(eos_ids)
        self._ends = words_of(eos_ids, vocab_size)
        self._words: Words | None = None  # behind the last token
        self.is_ended = False  # an end was drawn
        self.error = error  # what went wrong; "": nothing. Then only an end may follow

    def words(self) -> Words:
        """The tokens that may follow; only ends where the text is complete, has ended or ``error`` is set."""
        if self._words is None:
            self._words = self._ends
            if not (self.error or self.is_ended or self._matcher is None):
                self._words, self.error = self._look(self._matcher)
        return self._words

    def advance(self, token: int) -> None:
        """The text has one more token; sets ``error`` if none like it could follow."""
        if self.error or self.is_ended:
            return
        self._words = None
        if token in self._eos_ids:
            self.is_ended = True  # the matcher is not told: nothing comes behind an end
        elif self._matcher is None or not self._matcher.consume_token(token):
            said = "" if self._matcher is None else self._matcher.get_error().partition("\n")[0]
            self.error = f"token {token} cannot follow: {said or 'the grammar does not allow it'}"

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, as the tokenizer would cut them; often none."""
        if self.error or self.is_ended or self._matcher is None:
            return []
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def rows(self, tree: TokenTree, deepest: int) -> dict[int, tuple[Words, str]]:
        """What may follow the root and every node that the grammar allows, down to depth ``deepest``: (words, error).

        Nodes that it does not allow are left out: no walk gets there.
        """
        found = {ROOT: (self.words(), self.error)}
        if self.error or self.is_ended or self._matcher is None or not tree.children[0]:
            return found
        todo = [(ROOT, self._matcher.deep_copy())]
        while todo:
            node, matcher = todo.pop()
            below = [child for child in tree.children[node + 1] if has(found[node][0], tree.tokens[child])]
            if not below or found[node][1] or tree.depths[below[0]] > deepest:
                continue
            copies = [*(matcher.deep_copy() for _ in below[1:]), matcher]  # that of the node itself is not needed now
            for child, ahead in zip(below, copies, strict=True):
                token = tree.tokens[child]
                if token in self._eos_ids:
                    found[child] = self._ends, ""
                else:
                    ahead.consume_token(token)
                    found[child] = self._look(ahead)
                    todo.append((child, ahead))
        return found

    def _look(self, matcher: LLMatcher) -> tuple[Words, str]:
        """What may follow a matcher's text, and what went wrong."""
        raw = np.frombuffer(matcher.compute_bitmask(), np.uint32)
        if matcher.is_error():
            return self._ends, matcher.get_error().partition("\n")[0]
        words = np.zeros(len(self._ends), np.uint32)
        words[: len(raw)] = raw[: len(words)]
        return (words, "") if words.any() else (self._ends, "no token of the vocabulary can follow")


def has(words: Words, token: int) -> bool:
    """Whether a mask allows a token."""
    return token >> 5 < len(words) and bool(words[token >> 5] >> np.uint32(token & 31) & np.uint32(1))


def words_of(tokens: Iterable[int], vocab_size: int) -> Words:
    """The mask that allows these tokens alone; those outside the vocabulary are left out."""
    words = np.zeros(-(-vocab_size // 32), np.uint32)
    for token in tokens:
        if 0 <= token < vocab_size:
            words[token >> 5] |= np.uint32(1 << (token & 31))
    return words


def forbidden(words: Words, vocab_size: int) -> npt.NDArray[np.bool_]:
    """What a mask does not allow, ``[vocab_size]``."""
    bits = np.unpackbits(words.view(np.uint8), count=vocab_size, bitorder="little")
    return np.equal(bits, 0)
