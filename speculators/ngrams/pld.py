"""Prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding): copies what followed an earlier match.

Matches of the last ``ngram_max`` tokens come first, then shorter ones down to ``ngram_min``. An occurrence that
``draft_tokens`` tokens follow comes before one close to the end, which would draft one period of a loop only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Literal, cast

import numpy as np

from engine.errors import ConfigError
from engine.protocol import BatchSpeculator, Branch, Needs, RequestView
from engine.tree import IntArray
from speculators.method import Method
from speculators.ngrams.gram_indexes import GramIndexes, Kernel
from speculators.ngrams.gram_search import (
    FIRST,
    MAX_SCORED_MATCH,
    RANDOM,
    RECENT,
    compare_all,
    draft_all,
    find_many,
)
from speculators.node_counter import NodeCounter
from speculators.settings import Settings, setting

TIES = {"random": RANDOM, "first": FIRST, "recent": RECENT}
# Probability that the target accepts a token after so many matching ones, measured at temperatures 0 and 0.8.
MATCH_SCORES = (0.0, 0.3, 0.55, 0.65, 0.75, 0.75, 0.8, 0.8, 0.85)


@dataclass(frozen=True, slots=True)
class NgramConfig(Settings):
    """Which matches of the last tokens are copied."""

    ngram_max: int = setting(3, "tokens of the longest match", at_least=1)
    ngram_min: int = setting(1, "tokens of the shortest match", at_least=1)
    draft_tokens: int = setting(10, "tokens copied after a match", at_least=1)

    def check(self) -> None:
        if self.ngram_min > self.ngram_max:
            raise ConfigError(f"ngram_min is {self.ngram_min}; it must be at most ngram_max, {self.ngram_max}")


@dataclass(frozen=True, slots=True)
class PldConfig(NgramConfig):
    """Prompt lookup settings; the defaults are the published method's."""

    max_branches: int = setting(1, "distinct continuations per step; the published method has 1", at_least=1)
    tie_break: Literal["random", "first", "recent"] = setting("random", "which of equal continuations is drafted")


class PromptLookup(BatchSpeculator):
    """Drafts what followed earlier occurrences of the last tokens, longest match first."""

    name = "pld"
    needs = Needs()
    catches_up = True  # each draft links the tokens that no earlier one has

    def __init__(self, config: PldConfig | None = None) -> None:
        self._config = config = config or PldConfig()
        self._indexes = GramIndexes(config.ngram_min, config.ngram_max)
        self._tie = TIES[config.tie_break]
        self._rows = np.empty((0, 3 + config.draft_tokens), np.int32)  # of ``draft_all``
        self._cells = self._rows.reshape(-1).data
        longest = max(config.ngram_max, MAX_SCORED_MATCH)
        self._scores = [
            tuple(MATCH_SCORES[min(match + depth, MAX_SCORED_MATCH)] for depth in range(config.draft_tokens))
            for match in range(longest + 1)
        ]  # by matching tokens
        self._reaches = [tuple(accumulate(scores, mul)) for scores in self._scores]

    def begin(self, view: RequestView) -> None:
        self._indexes.begin(view)

    def end(self, view: RequestView) -> None:
        self._indexes.end(view)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        return self.propose_batch([view], [budget])[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Return at most ``max_branches`` chains for each request."""
        if self._config.max_branches > 1:
            return [self._propose_several(view, budget) for view, budget in zip(views, budgets, strict=True)]
        scores, reaches, name, width = self._scores, self._reaches, self.name, 3 + self._config.draft_tokens
        if len(views) > len(self._rows):
            self._rows = np.empty((2 * len(views), width), np.int32)  # a new array every step takes longer
            self._cells = self._rows.reshape(-1).data
        n = self._call(draft_all, views, budgets, self._rows)
        drafts: list[list[Branch]] = [[] for _ in views]
        if n:
            cells = self._cells[: n * width].tolist()  # faster than NumPy's
            for at in range(0, n * width, width):
                place, n_tokens, match = cells[at : at + 3]
                tokens, claims, reach = cells[at + 3 : at + 3 + n_tokens], scores[match], reaches[match]
                if n_tokens < len(claims):
                    claims, reach = claims[:n_tokens], reach[:n_tokens]
                drafts[place].append(Branch(tokens, name, None, False, None, claims, None, reach))
        return drafts

    def look_back(self, views: Sequence[RequestView], distances: Sequence[int]) -> IntArray:
        """Compare earlier drafts with what followed them.

        Args:
            distances: by request, how many tokens ago its draft is made; it knows nothing of them.

        Returns:
            ``[n, 2]``: tokens of the best draft, at most the distance; and those before the first one that is wrong.
        """
        found = np.empty((len(views), 2), np.int32)
        self._call(compare_all, views, distances, found)
        return found

    def _propose_several(self, view: RequestView, budget: int) -> list[Branch]:
        context, config = view.context.view, self._config
        if budget <= 0 or len(context) < 2:
            return []
        counter, branches = NodeCounter(), list[Branch]()
        for start, match in self._matches(view):
            draft = context[start : start + config.draft_tokens].tolist()
            n_before = counter.n_nodes
            n_fit = counter.add(draft, budget)
            if counter.n_nodes > n_before:
                branches.append(Branch(draft[:n_fit], self.name, scores=self._scores[match][:n_fit]))
            if len(branches) == config.max_branches or counter.n_nodes >= budget:
                break
        return branches

    def _matches(self, view: RequestView) -> list[list[int]]:
        """Return the position after every match and the number of matching tokens, best first."""
        found = np.empty((len(view.context), 2), np.int32)
        n = self._call(find_many, [view], [0], found)
        return cast("list[list[int]]", found[:n].tolist())

    def _call(self, kernel: Kernel, views: Sequence[RequestView], amounts: Sequence[int], out: IntArray) -> int:
        return self._indexes.call(kernel, views, amounts, self._config.draft_tokens, self._tie, out)


PLD = Method(
    name="pld",
    factory=lambda settings, context: PromptLookup(settings),
    description="copies what followed the longest earlier match of the last tokens",
    source="github.com/apoorvumang/prompt-lookup-decoding",
    settings=PldConfig,
)
