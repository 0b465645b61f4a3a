"""Merges the drafts of several sources into one tree and keeps its most probable nodes."""

from __future__ import annotations

from collections.abc import Callable

from engine.best_first.lists import best_nodes, parents_among, path_probabilities
from engine.protocol import Branch
from engine.tree import ROOT, TokenTree
from speculators.mixing.estimates import Claims

Probability = Callable[[str, int, "float | None"], float]  # source, depth, its own estimate -> estimate of a node


class MergedDrafts:
    """Everything proposed for one step of one request as one tree; parents precede children."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []  # 1 for children of the root
        self.scores: list[float] = []  # highest estimate of a node once its parent is accepted
        self.claims: list[Claims] = []  # the first proposer first
        self._nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node

    def add(self, branch: Branch, probability: Probability) -> None:
        """Add the nodes of a branch; ``probability`` estimates each of them."""
        nodes: list[int] = []
        for i, (token, above) in enumerate(zip(branch.tokens, branch.above, strict=True)):
            parent = ROOT if above == ROOT else nodes[above]
            node = self._nodes.setdefault((parent, int(token)), len(self.tokens))
            if node == len(self.tokens):
                self.tokens.append(int(token))
                self.parents.append(parent)
                self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
                self.scores.append(0.0)
                self.claims.append({})
            nodes.append(node)
            claim = None if branch.scores is None else float(branch.scores[i])
            for source in (branch.source,) if branch.proposers is None else branch.proposers[i]:
                self.claims[node][source] = claim
                score = min(probability(source, self.depths[node], claim), 1.0)
                self.scores[node] = max(self.scores[node], score)

    def best(self, n_nodes: int) -> Branch | None:
        """Return the ``n_nodes`` nodes of highest path probability without impossible ones; None if there are none."""
        reach = path_probabilities(self.parents, self.scores)
        kept = [node for node in best_nodes(reach, n_nodes) if reach[node] > 0.0]
        if not kept:
            return None
        return Branch(
            [self.tokens[node] for node in kept],
            self._name,
            parents_among(kept, self.parents),
            scores=[self.scores[node] for node in kept],
            proposers=[tuple(self.claims[node]) for node in kept],
        )

    def claims_of(self, tree: TokenTree) -> list[Claims]:
        """Return the claims for every node of a composed tree; none for a node that was not merged here."""
        nodes: list[int | None] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            above = ROOT if parent == ROOT else nodes[parent]
            nodes.append(None if above is None else self._nodes.get((above, token)))
        return [{} if node is None else self.claims[node] for node in nodes]
