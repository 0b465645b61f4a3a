"""Where one text stands in its grammar: which tokens may follow, at the text's end and at every node of a tree.

A mask depends on the tokens before it alone, so it is the same whether they came one by one or were drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.grammar.answer_matcher import AnswerMatcher
from engine.grammar.words import Words, has, words_of
from engine.tree import ROOT, TokenTree


class GrammarState:
    """Grows with its text; ``rows`` looks ahead and comes back.

    Args:
        matcher: at the beginning of the text; owned by the state. None: there is none, ``error`` says why.
        eos_ids: tokens that end the text.
        vocab_size: of the model.
        error: as below.
    """

    def __init__(self, matcher: AnswerMatcher | None, eos_ids: Sequence[int], vocab_size: int, error: str = "") -> None:
        self._matcher = matcher
        self._eos_ids = frozenset(eos_ids)
        self._ends = words_of(eos_ids, vocab_size)
        self._words: Words | None = None  # after the last token
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
            self.is_ended = True  # the matcher does not see it: no token follows an end
        elif self._matcher is not None and (said := self._matcher.advance(token)):
            self.error = f"token {token} cannot follow: {said}"

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, as the tokenizer would cut them; often none."""
        if self.error or self.is_ended or self._matcher is None:
            return []
        return self._matcher.forced()

    def rows(self, tree: TokenTree, deepest: int) -> dict[int, tuple[Words, str]]:
        """The tokens that may follow the root and every allowed node down to depth ``deepest``: (words, error).

        Nodes that it does not allow are left out: no walk gets there.
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
            copies = [*(matcher.copy() for _ in below[1:]), matcher]  # that of the node itself is not needed now
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
        """The tokens that may follow a matcher's text, and the error."""
        words, error = matcher.words()
        return (self._ends, error) if error else (words, "")
