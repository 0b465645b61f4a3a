"""Merges branches of several speculators into one tree.

Branches come in priority order. Shared prefixes share nodes, and the first source that proposes a node for acceptance
owns it. Drafts are cut at the budget. Probes are inserted whole or not at all: a cut probe predicts the wrong position.

Testing a sibling set against ``q`` is exact only if its tokens are the drafter's draws, and if the choice between that
test and Algorithm 4 does not depend on these draws. Therefore

* repeated draws of one source stay separate nodes;
* a set keeps ``q`` only if no other source *tried* to place a child there, even the same token, and even beyond the
  budget;
* draws share no nodes with probes, because their order and their share of the budget would then depend on luck; a
  probe changes nothing for draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan

import numpy as np

from engine.protocol import Branch
from engine.tree import EMPTY_TREE, ROOT, FloatArray, TokenTree

_RULE = -1  # in ``drawers``: every source of nodes that were not drawn from a distribution


class _SourceNumbers:
    """Numbers the sources in the order in which they appear."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._groups: dict[tuple[str, ...], tuple[int, int]] = {}

    def of(self, group: tuple[str, ...]) -> tuple[int, int]:
        """Return the number of the first source of a group, and the whole group as a bit set."""
        found = self._groups.get(group)
        if found is None:
            numbers = [self.names.setdefault(name, len(self.names)) for name in group]
            found = self._groups[group] = numbers[0], sum(1 << number for number in set(numbers))
        return found


class _Builder:
    """Builds one tree of several branches."""

    def __init__(self, budget: int, draws: bool = False) -> None:
        self.budget = budget
        self.draws = draws  # whether any branch was drawn from a distribution
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.sources: list[int] = []
        self.probe: list[bool] = []
        self.index: dict[
            tuple[int, int], int
        ] = {}  # (parent, token) -> first such node, in the order of TokenTree.find
        self.acceptable: dict[tuple[int, int], int] = {}  # as ``index``, without probes
        self.numbers = _SourceNumbers()
        self.q: dict[int, FloatArray] = {}
        self.probe_ends: set[int] = set()
        self.proposers: list[int] = []  # bit set of the sources that proposed a node for acceptance
        self.scores: list[float] = []  # NaN: no source gave one
        self.drawers: dict[int, set[int]] = {}  # parent -> sources that tried to place children for acceptance

    def insert(self, branch: Branch) -> None:
        """Add one branch; nodes beyond the budget are left out, and all below them."""
        if branch.probe and self._count_new(branch) > self.budget - len(self.tokens):
            return
        source, bits = self.numbers.of((branch.source,)) if branch.proposers is None else (0, 0)
        nodes: list[int | None] = []
        for i, (token, above) in enumerate(zip(branch.tokens, branch.above, strict=True)):
            parent = ROOT if above == ROOT else nodes[above]
            if branch.proposers is not None:
                source, bits = self.numbers.of(branch.proposers[i])
            if parent is None:
                nodes.append(None)
            elif branch.probe:
                nodes.append(self._merge(int(token), parent, source, probe=True))
            elif branch.q is None:
                if self.draws:
                    self.drawers.setdefault(parent, set()).add(_RULE)
                nodes.append(self._merge(int(token), parent, source, probe=False))
            else:
                self.drawers.setdefault(parent, set()).add(source)
                nodes.append(self._draw(int(token), parent, source, branch.q[i]))
            placed = nodes[-1]
            if placed is not None and not branch.probe:
                self.proposers[placed] |= bits
                if branch.scores is not None and isnan(self.scores[placed]):
                    self.scores[placed] = float(branch.scores[i])
        if branch.probe and nodes and nodes[-1] is not None:
            self.probe_ends.add(nodes[-1])

    def _merge(self, token: int, parent: int, source: int, probe: bool) -> int | None:
        """Return the node of a token below ``parent``, new if necessary; None if there is no room."""
        edge = (parent, token)
        known = self.index.get(edge)
        if known is None:
            return self._append(token, parent, source, probe)
        if probe or edge in self.acceptable:
            return known if probe else self.acceptable[edge]
        self.probe[known] = False
        self.sources[known] = source
        self.acceptable[edge] = known
        return known

    def _draw(self, token: int, parent: int, source: int, q: FloatArray) -> int | None:
        """Return the node of one draw from ``q`` ``[vocab]``: another source's or a new one; None without room."""
        known = self.acceptable.get((parent, token))
        if known is not None and not (known in self.q and self.sources[known] == source):
            return known
        node = self._append(token, parent, source, probe=False)
        if node is not None:
            self.q[node] = q
        return node

    def _append(self, token: int, parent: int, source: int, probe: bool) -> int | None:
        if len(self.tokens) >= self.budget:
            return None
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.sources.append(source)
        self.probe.append(probe)
        self.proposers.append(0)
        self.scores.append(nan)
        self.index.setdefault((parent, token), node)
        if not probe:
            self.acceptable.setdefault((parent, token), node)
        return node

    def _count_new(self, branch: Branch) -> int:
        """Return how many nodes a probe branch would add."""
        nodes: list[int | None] = []
        for token, above in zip(branch.tokens, branch.above, strict=True):
            parent = ROOT if above == ROOT else nodes[above]
            nodes.append(None if parent is None else self.index.get((parent, int(token))))
        return nodes.count(None)

    def build(self) -> TokenTree:
        """Return the finished tree."""
        return TokenTree(
            self.tokens,
            self.parents,
            self.sources,
            self.probe,
            tuple(self.numbers.names) or ("draft",),
            self._kept_q(),
            self.probe_ends,
            self.proposers,
            self.scores,
        )

    def _kept_q(self) -> FloatArray | None:
        """Return ``[n_nodes, vocab]`` fp32, rows of zeros where Algorithm 4 applies; None if that is everywhere."""
        kept = {node: row for node, row in self.q.items() if len(self.drawers[self.parents[node]]) == 1}
        if not kept:
            return None
        q = np.zeros((len(self.tokens), len(next(iter(kept.values())))), dtype=np.float32)
        for node, row in kept.items():
            q[node] = row
        return q


def _compose_one(branch: Branch, budget: int) -> TokenTree | None:
    """Return the tree of a single branch, at a fraction of the cost of ``_Builder``; None if a builder is needed.

    Nearly all steps have one branch, whose nodes neither merge nor were drawn.
    """
    if branch.probe or branch.q is not None:
        return None
    tokens = list(map(int, branch.tokens))
    scores = None if branch.scores is None else branch.scores[:budget]
    if branch.parents is None and branch.proposers is None:
        return TokenTree.chain(tokens[:budget], branch.source, scores)
    parents = list(map(int, branch.above))
    if branch.parents is not None and len(set(zip(parents, tokens, strict=True))) < len(tokens):
        return None
    tokens, parents = tokens[:budget], parents[:budget]
    if branch.proposers is None:
        return TokenTree(tokens, parents, source_names=(branch.source,), scores=scores)
    numbers, groups = _SourceNumbers(), branch.proposers[: len(tokens)]
    known = {group: numbers.of(group) for group in dict.fromkeys(groups)}
    owners, bits = [known[group][0] for group in groups], [known[group][1] for group in groups]
    return TokenTree(tokens, parents, owners, None, tuple(numbers.names), proposers=bits, scores=scores)


def compose(branches: Sequence[Branch], budget: int) -> TokenTree:
    """Return one tree of at most ``budget`` nodes from branches in priority order.

    A child keeps its draft distribution only where the module's rules allow it. Elsewhere Algorithm 4 (one-hot)
    applies, which is exact for any tokens that do not depend on the target's draw.
    """
    if not branches or budget <= 0:
        return EMPTY_TREE
    only = _compose_one(branches[0], budget) if len(branches) == 1 else None
    if only is not None:
        return only
    builder = _Builder(budget, draws=any(branch.q is not None for branch in branches))
    for branch in branches:
        builder.insert(branch)
    return builder.build()
