"""The state of one text in its grammar: which tokens may follow the text and every node of a tree.

A mask depends only on the tokens before it, whether these were drawn one by one or drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.grammar.answer_matcher import AnswerMatcher
from engine.grammar.words import Words, has, words_of
from engine.tree import ROOT, TokenTree


class GrammarState:
    """Advances with its text; ``rows`` looks ahead without moving.

    Args:
        matcher: at the beginning of the text; owned by the state. None: compiling failed, ``error`` has the reason.
        eos_ids: tokens that end the text.
        vocab_size: of the model.
        error: why no text can follow; "": no error.
    """

    def __init__(self, matcher: AnswerMatcher | None, eos_ids: Sequence[int], vocab_size: int, error: str = "") -> None:
        self._matcher = matcher
        self._eos_ids = frozenset(eos_ids)
        self._ends = words_of(eos_ids, vocab_size)
        self._words: Words | None = None  # after the last token
        self.is_ended = False  # an end token was drawn
        self.error = error  # if set, only an end token may follow

    def words(self) -> Words:
        """Return the mask of tokens that may follow: only end tokens after a complete text, an end or an error."""
        if self._words is None:
            self._words = self._ends
            if not (self.error or self.is_ended or self._matcher is None):
                self._words, self.error = self._look(self._matcher)
        return self._words

    def advance(self, token: int) -> None:
        """Append a token to the text; sets ``error`` if the grammar does not allow it."""
        if self.error or self.is_ended:
            return
        self._words = None
        if token in self._eos_ids:
            self.is_ended = True  # the matcher does not see it: no token follows an end
        elif self._matcher is not None and (reason := self._matcher.advance(token)):
            self.error = f"token {token} cannot follow: {reason}"

    def forced(self) -> list[int]:
        """Return the tokens that the grammar forces, as the tokenizer cuts their text; often none."""
        if self.error or self.is_ended or self._matcher is None:
            return []
        return self._matcher.forced()

    def rows(self, tree: TokenTree, deepest: int) -> dict[int, tuple[Words, str]]:
        """Return (mask, error) for the root and every allowed node down to depth ``deepest``.

        Nodes that the grammar does not allow are left out: no walk reaches them.
        """
        found = {ROOT: (self.words(), self.error)}
        if self.error or self.is_ended or self._matcher is None or not tree.children[0]:
            return found
        todo = [(ROOT, self._matcher.copy())]
        while todo:
            node, matcher = todo.pop()
            below = [child for child in tree.children[node + 1] if has(found[node][0], tree.tokens[child])]
            if not below or found[node][1] or tree.depths[below[0]] > deepest:
                continue
            copies = [*(matcher.copy() for _ in below[1:]), matcher]  # the node's own matcher serves its last child
            for child, ahead in zip(below, copies, strict=True):
                token = tree.tokens[child]
                if token in self._eos_ids:
                    found[child] = self._ends, ""
                else:
                    ahead.advance(token)
                    found[child] = self._look(ahead)
                    todo.append((child, ahead))
        return found

    def _look(self, matcher: AnswerMatcher) -> tuple[Words, str]:
        """Return the mask of tokens that may follow the text of a matcher, and the error."""
        words, error = matcher.words()
        return (self._ends, error) if error else (words, "")
