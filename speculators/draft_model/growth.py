"""How a draft grows, one drafter forward per depth: as a chain, or as a tree that widens where the drafter is unsure.

Both say what to score next (``rows``, ``asks``) and take what was chosen there (``take``); the caller batches many of
them into one forward.

The tree is that of EAGLE-2 (Li et al. 2024, arXiv 2406.16858, section 4), built on a model's own probabilities: at
every depth the most probable new nodes are expanded, and in the end the nodes most probable on the whole are kept. The
probability of a node is the product of the scores on its path, so a kept node's ancestors are kept as well. Every
forward scores the expanded part of the tree anew: the cache holds committed text only, so nothing has to be rolled
back.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from engine.protocol import Branch, RequestView
from engine.sampling.history import History
from engine.tree import ROOT, FloatArray, TokenTree
from speculators.draft_model.choice import Ask, Choice, draws
from speculators.draft_model.drafter import Cached, Rows


class Growth(Protocol):
    """A draft in the making."""

    def rows(self) -> Rows:
        """What is to be scored next."""

    def asks(self) -> list[Ask]:
        """What is to be chosen behind every wanted row."""

    def take(self, choices: Sequence[Choice]) -> bool:
        """Grow by the choices, one per ask; whether there is more to score."""

    def branches(self, source: str) -> list[Branch]:
        """The finished draft."""


def chunk(view: RequestView, cached: Cached, n: int, wanted: Sequence[int] = ()) -> Rows:
    """The next ``n`` tokens of the context that are not in the cache; they count as cached from here on."""
    first = cached.n
    cached.n += n
    return Rows(view.request_id, first, view.context.view[first : first + n].tolist(), None, wanted)


class Reading:
    """No draft yet: the cache lags behind, and this call has room for ``n`` more tokens of the text."""

    def __init__(self, view: RequestView, cached: Cached, n: int) -> None:
        self._rows = chunk(view, cached, n)

    def rows(self) -> Rows:
        """The chunk; no logits."""
        return self._rows

    def asks(self) -> list[Ask]:
        """Nothing."""
        return []

    def take(self, choices: Sequence[Choice]) -> bool:
        """Done."""
        return False

    def branches(self, source: str) -> list[Branch]:
        """None."""
        return []


class Chain:
    """Token by token, as the drafter itself would go on; it ends at ``depth`` tokens or at a stop id.

    Each forward has one row, and what it leaves in the cache stays there if it is accepted.
    """

    def __init__(self, view: RequestView, cached: Cached, depth: int, history: History | None) -> None:
        self._view = view
        self._cached = cached
        self._depth = depth
        self._history = history  # changed as the chain grows
        self._n_context = len(view.context)
        pending = self._n_context - cached.n
        self._rows = chunk(view, cached, pending, (pending - 1,))
        self._tokens: list[int] = []
        self._scores: list[float] = []
        self._q: list[FloatArray] = []

    def rows(self) -> Rows:
        """What the cache lacks of the text at first, then the last drafted token."""
        return self._rows

    def asks(self) -> list[Ask]:
        """The next token."""
        return [Ask(self._view.request.params, self._history, self._n_context + len(self._tokens))]

    def take(self, choices: Sequence[Choice]) -> bool:
        """One token more."""
        [choice] = choices
        token = choice.tokens[0]
        self._tokens.append(token)
        if choice.q is not None:
            self._q.append(choice.q)
        else:
            self._scores.append(choice.scores[0])
        if len(self._tokens) == self._depth or token in self._view.request.params.stop_ids:
            return False
        if self._history is not None:
            self._history.add(token)
        n_cached = self._n_context + len(self._tokens) - 1
        self._rows = Rows(self._view.request_id, n_cached, [token], None, (0,))
        self._cached.ahead.append(token)
        return True

    def branches(self, source: str) -> list[Branch]:
        """The chain."""
        if draws(self._view.request.params):
            return [Branch(self._tokens, source, q=np.stack(self._q))]
        return [Branch(self._tokens, source, scores=self._scores)]


class Tree:
    """At most ``n_nodes`` nodes and ``depth`` levels; ``beam`` nodes are expanded per level, each to ``beam`` children.

    For requests without a history: penalties would have to know the path of every node.
    """

    def __init__(self, view: RequestView, cached: Cached, depth: int, n_nodes: int, beam: int) -> None:
        self._view = view
        self._depth = depth
        self._n_nodes = n_nodes
        self._beam = beam
        self._n_context = len(view.context)
        pending = self._n_context - cached.n
        self._rows = chunk(view, cached, pending, (pending - 1,))
        self._level = 1  # depth of the nodes that come next
        self._expanded: list[int] = [ROOT]  # whose children come next
        # Every candidate so far, parents first.
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._logs: list[float] = []  # of the product of scores on the path
        # The candidates that were scored, as the tree of the next forward.
        self._scored: dict[int, int] = {}  # candidate -> its node there

    def rows(self) -> Rows:
        """What the cache lacks of the text at first, then the expanded tree."""
        return self._rows

    def asks(self) -> list[Ask]:
        """Children of every expanded node."""
        position = self._n_context + self._level - 1
        return [Ask(self._view.request.params, None, position, min(self._beam, self._n_nodes)) for _ in self._expanded]

    def take(self, choices: Sequence[Choice]) -> bool:
        """One level more."""
        first = len(self._tokens)
        for parent, choice in zip(self._expanded, choices, strict=True):
            above = 0.0 if parent == ROOT else self._logs[parent]
            for token, score in zip(choice.tokens, choice.scores, strict=True):
                self._tokens.append(token)
                self._parents.append(parent)
                self._scores.append(score)
                self._logs.append(above + math.log(score))
        if self._level == self._depth:
            return False
        self._level += 1
        self._expanded = self._worth_expanding(first)
        if self._expanded:
            self._rows = self._forward()
        return bool(self._expanded)

    def _worth_expanding(self, first: int) -> list[int]:
        """The best candidates of the last level (from ``first`` on) that may be kept and can have children."""
        kept = set(self._best())
        stops = self._view.request.params.stop_ids
        alive = [i for i in range(first, len(self._tokens)) if i in kept and self._tokens[i] not in stops]
        return heapq.nsmallest(self._beam, alive, key=self._rank)

    def _rank(self, candidate: int) -> tuple[float, int]:
        return -self._logs[candidate], candidate

    def _best(self) -> list[int]:
        """The candidates to keep, best first; a parent never comes behind its child."""
        return heapq.nsmallest(self._n_nodes, range(len(self._tokens)), key=self._rank)

    def _forward(self) -> Rows:
        new = range(len(self._scored), len(self._scored) + len(self._expanded))
        self._scored.update(zip(self._expanded, new, strict=True))
        parents = [self._scored.get(self._parents[i], ROOT) for i in self._scored]
        tree = TokenTree([self._tokens[i] for i in self._scored], parents)
        root = [int(self._view.context.view[-1])]
        return Rows(self._view.request_id, self._n_context - 1, root, tree, [node + 1 for node in new])

    def branches(self, source: str) -> list[Branch]:
        """The tree, most probable nodes first."""
        kept = self._best()
        place = {candidate: node for node, candidate in enumerate(kept)}
        parents = [place.get(self._parents[i], ROOT) for i in kept]
        tokens, scores = [self._tokens[i] for i in kept], [self._scores[i] for i in kept]
        return [Branch(tokens, source, parents, scores=scores)] if kept else []
