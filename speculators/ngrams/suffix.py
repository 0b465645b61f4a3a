"""Suffix decoding (SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975): what followed the longest match.

As published: a tree of all suffixes, up to a depth, of the request's own text (and, by option, of earlier outputs). The
longest suffix of the context that occurs in it is followed; from there a draft grows best first by the product of
branch frequencies, as long as that product is at least 0.1, to ``1 + 4 x match`` tokens and at most 60.

The tree itself is never built: its answer depends only on where the suffix occurred, and one compiled scan over 64
thousand tokens takes less time than keeping counts in a tree takes per token. Every suffix length is tried and the
draft with the highest sum of path probabilities wins, as in the published code; a longer match has fewer occurrences,
hence surer frequencies.

Our default is another method of the same inputs, the text half of ``speculators.successors.speculator``: it mixes the
lengths of match instead of choosing one, and fills any budget. ``mode="paper"`` is the published one. It helps where
text comes back: code edits, agents, quotations, loops. On text that never repeats it drafts little and costs little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.token_buffer import TokenBuffer
from engine.tree import ROOT, IntArray
from retrieval_store.index.jit import compiled
from speculators.tenant_state import TenantState

DOCUMENT_END = -1  # between earlier outputs: no match and no draft crosses it


@dataclass(frozen=True, slots=True)
class SuffixConfig:
    """Suffix decoding settings.

    Raises:
        ConfigError: a value is out of range.
    """

    mode: Literal["mixed", "paper"] = "mixed"  # our mixture, or the published algorithm with what follows
    max_match: int = 64  # tokens; the depth of the published tree
    draft_base: int = 1  # tokens of a draft: base + factor x match, at most max_draft
    draft_factor: float = 4.0
    max_draft: int = 60
    min_probability: float = 0.1  # of a path, as the product of branch frequencies
    max_occurrences: int = 64  # of one suffix that are followed, the most recent ones
    history: int = 65536  # tokens of earlier outputs kept per scope; 0: none
    shared: bool = False  # whether earlier outputs of the scope are searched too

    def __post_init__(self) -> None:
        if self.mode not in ("mixed", "paper"):
            raise ConfigError(f"suffix: mode must be mixed or paper, got {self.mode!r}")
        for name in ("max_match", "draft_base", "max_draft", "max_occurrences"):
            if getattr(self, name) < 1:
                raise ConfigError(f"suffix: {name} must be at least 1, got {getattr(self, name)}")
        if self.history < 0 or self.draft_factor < 0:
            raise ConfigError(f"suffix: history {self.history} and draft_factor {self.draft_factor} must be at least 0")
        if not 0.0 < self.min_probability <= 1.0:
            raise ConfigError(f"suffix: min_probability must lie in (0, 1], got {self.min_probability}")


@compiled
def match_lengths(text: IntArray, context: IntArray, longest: int, lengths: IntArray, starts: IntArray) -> int:
    """Where a suffix of ``context`` occurred in ``text`` with a token behind it, the latest first.

    ``starts`` get the positions behind the occurrences, ``lengths`` the matched tokens (at most ``longest``); returns
    how many were found, at most ``len(starts)``.
    """
    n = 0
    last = context[-1]
    for end in range(len(text) - 2, -1, -1):
        if text[end] != last:
            continue
        length = 1
        while length < longest and length <= end and length < len(context):
            if text[end - length] != context[len(context) - 1 - length]:
                break
            length += 1
        starts[n] = end + 1
        lengths[n] = length
        n += 1
        if n == len(starts):
            break
    return n


class SuffixDecoding:
    """The published method."""

    name = "suffix"
    needs = Needs()

    def __init__(self, config: SuffixConfig | None = None) -> None:
        self._config = config or SuffixConfig(mode="paper")
        self._earlier: TenantState[TokenBuffer] = TenantState()  # its outputs, DOCUMENT_END behind each
        self._lengths = self._starts = np.empty(0, np.int32)  # scratch, as long as the longest text

    def begin(self, view: RequestView) -> None:
        """Nothing to prepare: the text is searched where it is."""

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """The best-scored draft of all suffix lengths and both texts, a tree where continuations differ."""
        context = view.context.view
        if len(context) == 0 or budget <= 0:
            return []
        texts = [context]
        if self._config.shared and view.request.scope in self._earlier:
            texts.append(self._earlier[view.request.scope].view)
        drafts = [draft for text in texts for draft in self._drafts(text, context, budget)]
        best = max(drafts, key=lambda draft: draft.expected, default=None)
        if best is None or not best.tokens:
            return []
        return [Branch(best.tokens, self.name, best.parents, scores=best.scores)]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Nothing to learn: the owner of the view has already appended the tokens."""

    def end(self, view: RequestView) -> None:
        """Keep the output for later requests of the scope, if they may see it."""
        output = view.context.view[view.n_prompt :].tolist()
        if not self._config.shared or not self._config.history or not output:
            return
        kept = self._earlier.get(view.request.scope)
        tokens = [] if kept is None else kept.view[-self._config.history :].tolist()
        tokens = [*tokens, *output, DOCUMENT_END][-self._config.history :]
        self._earlier.keep(view.request.scope, TokenBuffer(tokens))

    def _drafts(self, text: IntArray, context: IntArray, budget: int) -> list[_Draft]:
        """Drafts for the lengths of match that some occurrence reaches and no longer one does.

        No draft is worth more than the tokens it may have or the text has left: lengths that promise most come first,
        and a length that promises less than the best draft so far is left out.
        """
        config = self._config
        if len(self._starts) < len(text):
            self._lengths, self._starts = np.empty((2, 2 * len(text)), np.int32)
        n = match_lengths(text, context, config.max_match, self._lengths, self._starts)
        lengths, starts = self._lengths[:n], self._starts[:n]
        promises: list[tuple[int, int, int, list[int]]] = []  # at most so much; match, tokens, places
        for match in np.unique(lengths).tolist():
            places = starts[lengths >= match][: config.max_occurrences].tolist()
            n_tokens = min(int(config.draft_base + config.draft_factor * match), config.max_draft, budget)
            promises.append((min(n_tokens, len(text) - places[-1]), match, n_tokens, places))
        drafts: list[_Draft] = []
        best = 0.0
        for promise, _, n_tokens, places in sorted(promises, reverse=True):
            if promise <= best:
                break
            draft = _Draft(text, places)
            draft.grow(n_tokens, config.min_probability)
            drafts.append(draft)
            best = max(best, draft.expected)
        return drafts


class _Draft:
    """A tree that grows from the occurrences of one suffix."""

    def __init__(self, text: IntArray, starts: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.expected = 0.0  # tokens, by the frequencies
        self._text = text
        self._open: list[tuple[float, float, int, int, list[int]]] = []  # path p, p, parent, token, places of the token
        self._branch(1.0, ROOT, starts)

    def grow(self, n_tokens: int, least: float) -> None:
        """Add up to ``n_tokens`` nodes of path probability ``least`` or more, the most probable first."""
        while self._open and len(self.tokens) < n_tokens:
            best = max(range(len(self._open)), key=lambda i: self._open[i][0])
            path, p, parent, token, places = self._open.pop(best)
            if path < least:
                return
            self.tokens.append(token)
            self.parents.append(parent)
            self.scores.append(p)
            self.expected += path
            self._branch(path, len(self.tokens) - 1, [place + 1 for place in places])

    def _branch(self, path: float, parent: int, places: Sequence[int]) -> None:
        """What follows at ``places`` becomes open below ``parent``."""
        text = self._text
        found = [(int(text[place]), place) for place in places if place < len(text) and text[place] != DOCUMENT_END]
        counts = Counter(token for token, _ in found)
        for token, count in counts.items():
            p = count / len(found)
            self._open.append((path * p, p, parent, token, [place for other, place in found if other == token]))
