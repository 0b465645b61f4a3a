"""Counts the nodes that branches occupy in the composed tree.

The composer (``engine.composer``) merges shared prefixes, so a draft has fewer nodes than the sum of its branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from engine.protocol import Branch
from engine.tree import ROOT

_Level: TypeAlias = "dict[int, _Level]"


class NodeCounter:
    """A prefix tree of the branches of one step."""

    def __init__(self) -> None:
        self._root: _Level = {}
        self.n_nodes = 0

    def add(self, tokens: Sequence[int], limit: int) -> int:
        """Add the first tokens of a chain, up to ``limit`` nodes in all; return how many tokens fit."""
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
        """Add a chain and return True, or change nothing and return False if there were more than ``limit`` nodes."""
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
        """Add the first nodes of a chain or tree, up to ``limit`` nodes in all; return how many of its nodes fit."""
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
        """Add a chain of new nodes below ``level``."""
        for token in tokens:
            below: _Level = {}
            level[token] = below
            level = below
        self.n_nodes += len(tokens)
