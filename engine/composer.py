"""Merges branches of several speculators into one tree (METHODS.md, section 0).

Branches come in priority order; shared prefixes share nodes; the first proposer of a node owns it. Guesses are
inserted as far as the budget reaches, probes whole or not at all (a cut probe would predict the wrong position).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.protocol import Branch
from engine.tree import EMPTY_TREE, ROOT, FloatArray, TokenTree


class _Builder:
    """Growing arrays of one tree."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.sources: list[int] = []
        self.probe: list[bool] = []
        self.index: dict[tuple[int, int], int] = {}
        self.names: dict[str, int] = {}
        self.q: dict[int, FloatArray] = {}
        self.probe_ends: set[int] = set()
        self.mixed: set[int] = set()  # parents whose children may not be tested against q

    def insert(self, branch: Branch) -> None:
        """Add one branch; stops at the budget."""
        source = self.names.setdefault(branch.source, len(self.names))
        if branch.probe and self._missing(branch) > self.budget - len(self.tokens):
            return
        nodes: list[int] = []
        parents = branch.parents if branch.parents is not None else range(-1, len(branch.tokens) - 1)
        for i, (token, above) in enumerate(zip(branch.tokens, parents, strict=True)):
            parent = ROOT if above == ROOT else nodes[above]
            node = self._place(int(token), parent, source, branch, i)
            if node is None:
                self._mark_cut(branch, i, nodes)
                return
            nodes.append(node)
        if branch.probe and nodes:
            self.probe_ends.add(nodes[-1])

    def _place(self, token: int, parent: int, source: int, branch: Branch, i: int) -> int | None:
        known = self.index.get((parent, token))
        sampled = branch.q is not None and not branch.probe
        if known is not None and not (sampled and self._same_draw(known, source)):
            if not branch.probe:
                self.probe[known] = False
            if known in self.q or sampled:
                self.mixed.add(parent)
            return known
        if len(self.tokens) >= self.budget:
            return None
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.sources.append(source)
        self.probe.append(branch.probe)
        self.index.setdefault((parent, token), node)
        if sampled and branch.q is not None:
            self.q[node] = branch.q[i]
        return node

    def _same_draw(self, known: int, source: int) -> bool:
        """Whether a repeated token is another independent draw of one source: duplicates are then kept."""
        return known in self.q and self.sources[known] == source

    def _missing(self, branch: Branch) -> int:
        """How many nodes a probe chain would add."""
        node: int | None = ROOT
        for i, token in enumerate(branch.tokens):
            node = self.index.get((ROOT if node is None else node, int(token)))
            if node is None:
                return len(branch.tokens) - i
        return 0

    def _mark_cut(self, branch: Branch, i: int, nodes: list[int]) -> None:
        """A sampled sibling was cut off: what is left of that sibling set is no independent sample."""
        if branch.q is None or branch.parents is None:
            return
        for above in branch.parents[i:]:
            if above < len(nodes):
                self.mixed.add(ROOT if above == ROOT else nodes[above])

    def build(self) -> TokenTree:
        """The finished tree; ``q`` survives only where all siblings are draws of one source."""
        return TokenTree(
            self.tokens,
            self.parents,
            self.sources,
            self.probe,
            tuple(self.names) or ("draft",),
            self._kept_q(),
            self.probe_ends,
        )

    def _kept_q(self) -> FloatArray | None:
        if not self.q:
            return None
        owners: dict[int, set[int]] = {}
        for node, parent in enumerate(self.parents):
            if not self.probe[node]:
                owners.setdefault(parent, set()).add(self.sources[node] if node in self.q else -1)
        kept = {
            node: row
            for node, row in self.q.items()
            if self.parents[node] not in self.mixed and len(owners[self.parents[node]]) == 1
        }
        if not kept:
            return None
        q = np.zeros((len(self.tokens), len(next(iter(kept.values())))), dtype=np.float32)
        for node, row in kept.items():
            q[node] = row
        return q


def compose(branches: Sequence[Branch], budget: int) -> TokenTree:
    """One tree of at most ``budget`` nodes out of branches in priority order.

    A child keeps its draft distribution only if all its siblings that can be accepted were drawn by the same source
    and none was merged or cut; otherwise Algorithm 4 (one-hot) applies there, which is exact for any choice of
    tokens that does not depend on the target's draw.
    """
    if not branches or budget <= 0:
        return EMPTY_TREE
    builder = _Builder(budget)
    for branch in branches:
        builder.insert(branch)
    return builder.build()
