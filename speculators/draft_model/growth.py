"""Drafts of ``draft-model``: what the drafter's cache has to score for them, beside how they grow.

How they grow is the drafters' common business (``engine.drafter.trees``). A chain leaves each of its rows in the cache,
where it stays if it is accepted. A tree is scored anew at every depth, as far as it is expanded: the cache holds
committed text only, so nothing has to be rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.drafter.trees import chain, levels
from engine.drafter.trees.choice import Ask, Choice
from engine.protocol import Branch, RequestView
from engine.sampling.history import History
from engine.tree import ROOT, TokenTree
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
    """Token by token, as the drafter itself would go on; it ends at ``depth`` tokens or at a stop id."""

    def __init__(self, view: RequestView, cached: Cached, depth: int, history: History | None) -> None:
        self._view = view
        self._cached = cached
        self._n_context = len(view.context)
        self._chain = chain.Chain(view.request.params, history, self._n_context, depth)
        pending = self._n_context - cached.n
        self._rows = chunk(view, cached, pending, (pending - 1,))

    def rows(self) -> Rows:
        """What the cache lacks of the text at first, then the last drafted token."""
        return self._rows

    def asks(self) -> list[Ask]:
        """The next token."""
        return self._chain.asks()

    def take(self, choices: Sequence[Choice]) -> bool:
        """One token more."""
        drafted = self._chain.take(choices)
        for last in drafted:
            token = self._chain.token(last)
            self._rows = Rows(self._view.request_id, self._n_context + last, [token], None, (0,))
            self._cached.ahead.append(token)
        return bool(drafted)

    def branches(self, source: str) -> list[Branch]:
        """The chain."""
        branch = self._chain.branch(source)
        return [] if branch is None else [branch]


class Tree:
    """The most probable tree. For requests without a history: penalties would have to know the path of every node."""

    def __init__(self, view: RequestView, cached: Cached, depth: int, n_nodes: int, beam: int) -> None:
        self._view = view
        self._n_context = len(view.context)
        self._levels = levels.Levels(view.request.params, self._n_context, depth, n_nodes, beam)
        pending = self._n_context - cached.n
        self._rows = chunk(view, cached, pending, (pending - 1,))
        self._scored: dict[int, int] = {}  # expanded candidate -> its node in the tree of the next forward

    def rows(self) -> Rows:
        """What the cache lacks of the text at first, then the expanded tree."""
        return self._rows

    def asks(self) -> list[Ask]:
        """Children of every expanded node."""
        return self._levels.asks()

    def take(self, choices: Sequence[Choice]) -> bool:
        """One level more."""
        expanded = self._levels.take(choices)
        if expanded:
            self._rows = self._forward(expanded)
        return bool(expanded)

    def _forward(self, expanded: list[int]) -> Rows:
        new = range(len(self._scored), len(self._scored) + len(expanded))
        self._scored.update(zip(expanded, new, strict=True))
        parents = [self._scored.get(self._levels.parent(i), ROOT) for i in self._scored]
        tree = TokenTree([self._levels.token(i) for i in self._scored], parents)
        root = [int(self._view.context.view[-1])]
        return Rows(self._view.request_id, self._n_context - 1, root, tree, [node + 1 for node in new])

    def branches(self, source: str) -> list[Branch]:
        """The tree, most probable nodes first."""
        branch = self._levels.branch(source)
        return [] if branch is None else [branch]
