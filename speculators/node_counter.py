"""Counts the nodes that branches will occupy in the composed tree.

The composer (``engine.composer``) merges shared prefixes, so the sum of branch lengths overstates what a draft costs. A
speculator that wants to fill its budget exactly counts the way the composer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from engine.protocol import Branch
from engine.tree import ROOT

_Level: TypeAlias = "dict[int, _Level]"


class NodeCounter:
    """A prefix tree of everything drafted so far in one step."""

    def __init__(self) -> None:
        self._root: _Level = {}
        self.n_nodes = 0

    def add(self, tokens: Sequence[int], limit: int) -> int:
        """Insert a chain while the count stays within ``limit`` nodes; returns how many of its tokens fit."""
        level = self._root
        for depth, token in enumerate(tokens):
            below = level.get(token)
            if below is None:
                n_fit = min(len(tokens) - depth, max(limit - self.n_nodes, 0))
                self._append(level, tokens[depth : depth + n_fit])
                return depth + n_fit
            level = below
        return len(tokens)

    def add_whole(self, tokens: Sequence[int], limit: int) -> bool:
        """Insert a chain whole or, when the count would exceed ``limit`` nodes, not at all; returns which."""
        level = self._root
        for depth, token in enumerate(tokens):
            below = level.get(token)
            if below is None:
                if self.n_nodes + len(tokens) - depth > limit:
                    return False
                self._append(level, tokens[depth:])
                return True
            level = below
        return True

    def add_branch(self, branch: Branch, limit: int | None = None) -> int:
        """Insert a branch, chain or tree, while the count stays within ``limit`` nodes, if there is one.

        Returns how many of its first nodes fit.
        """
        levels: list[_Level] = []
        for token, parent in zip(branch.tokens, branch.above, strict=True):
            above = self._root if parent == ROOT else levels[parent]
            below = above.get(token)
            if below is None:
                if self.n_nodes == limit:
                    break
                below = above[token] = {}
                self.n_nodes += 1
            levels.append(below)
        return len(levels)

    def _append(self, level: _Level, tokens: Sequence[int]) -> None:
        """Hang new nodes, one below the other, under ``level``."""
        for token in tokens:
            below: _Level = {}
            level[token] = below
            level = below
        self.n_nodes += len(tokens)
