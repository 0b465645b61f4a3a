"""The tree of EAGLE-2 (Li et al. 2024, arXiv 2406.16858, section 4), built on a drafter's own probabilities.

At every depth the most probable new nodes are expanded, and in the end the nodes most probable on the whole are kept.
The probability of a node is the product of the scores on its path, so a kept node's ancestors are kept as well.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from engine.best_first.lists import best_nodes, parents_among
from engine.drafter.trees.choice import Ask, Choice
from engine.protocol import Branch
from engine.sampling.params import SamplingParams
from engine.tree import ROOT


class Levels:
    """At most ``n_nodes`` nodes and ``depth`` levels; ``beam`` nodes are expanded per level, each to ``beam`` children.

    For requests without a history (penalties would have to know the path of every node) whose drafts are no draws (they
    would be chosen by what was drawn).

    Args:
        params: the request's.
        position: of the first drafted token in prompt + output.
        depth: the longest path.
        n_nodes: kept.
        beam: see above.
    """

    def __init__(self, params: SamplingParams, position: int, depth: int, n_nodes: int, beam: int) -> None:
        self._params = params
        self._position = position
        self._depth = depth
        self._n_nodes = n_nodes
        self._beam = beam
        self._level = 1  # depth of the nodes that come next
        self._expanded: list[int] = [ROOT]  # whose children come next
        # Every candidate so far, parents first.
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._logs: list[float] = []  # of the product of scores on the path
        self._bar: list[float] = []  # heap of the n_nodes highest of them: what does not reach it will not be kept

    def asks(self) -> list[Ask]:
        """Children of every expanded node."""
        position = self._position + self._level - 1
        return [Ask(self._params, None, position, min(self._beam, self._n_nodes)) for _ in self._expanded]

    def take(self, choices: Sequence[Choice]) -> list[int]:
        """One level more."""
        first = len(self._tokens)
        for parent, choice in zip(self._expanded, choices, strict=True):
            self._add(parent, choice)
        self._level += 1
        self._expanded = [] if self._level > self._depth else self._worth_expanding(first)
        return self._expanded

    def _add(self, parent: int, choice: Choice) -> None:
        """The children of one node, but for those that are too improbable already."""
        above = 0.0 if parent == ROOT else self._logs[parent]
        for token, score in zip(choice.tokens, choice.scores, strict=True):
            log = above + math.log(score)
            if len(self._bar) < self._n_nodes:
                heapq.heappush(self._bar, log)
            elif log > self._bar[0]:
                heapq.heapreplace(self._bar, log)
            else:
                return  # of equals the first is kept, and the children behind this one are no better
            self._tokens.append(token)
            self._parents.append(parent)
            self._scores.append(score)
            self._logs.append(log)

    def _worth_expanding(self, first: int) -> list[int]:
        """The best candidates of the last level (from ``first`` on) that may be kept and can have children."""
        bar = self._bar[0] if len(self._bar) == self._n_nodes else -math.inf
        stops = self._params.stop_ids
        fresh = range(first, len(self._tokens))
        return self._best([i for i in fresh if self._logs[i] >= bar and self._tokens[i] not in stops], self._beam)

    def _best(self, candidates: Sequence[int], n: int) -> list[int]:
        """The ``n`` most probable, best first, of equals the first; a parent never comes behind its child."""
        return sorted(candidates, key=self._logs.__getitem__, reverse=True)[:n]

    def token(self, candidate: int) -> int:
        """By its number, in order of discovery."""
        return self._tokens[candidate]

    def parent(self, candidate: int) -> int:
        """The candidate it was found behind."""
        return self._parents[candidate]

    def branch(self, source: str) -> Branch | None:
        """The tree, most probable nodes first."""
        kept = best_nodes(self._logs, self._n_nodes)
        parents = parents_among(kept, self._parents)
        tokens, scores = [self._tokens[i] for i in kept], [self._scores[i] for i in kept]
        return Branch(tokens, source, parents, scores=scores) if kept else None
