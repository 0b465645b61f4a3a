"""Drafts of several sources merged into one tree, and the best part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.protocol import Branch
from engine.tree import ROOT, TokenTree

Probability = Callable[[int, str, int, "float | None"], float]  # request, source, depth, claim -> calibrated estimate


class Candidates:
    """Everything proposed for one step of one request; parents precede children.

    Args:
        name: of the speculator that merges.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.scores: list[float] = []  # of a node once its parent is accepted
        self.claims: list[dict[str, float | None]] = []  # proposer -> its own estimate; the first proposer first
        self._index: dict[tuple[int, int], int] = {}

    def add(self, branch: Branch, probability: Probability, request_id: int) -> None:
        """Merge a branch; a node that several propose keeps the highest estimate."""
        placed: list[int] = []
        for i, (token, above) in enumerate(zip(branch.tokens, branch.above, strict=True)):
            parent = ROOT if above == ROOT else placed[above]
            node = self._node(int(token), parent)
            placed.append(node)
            claim = None if branch.scores is None else float(branch.scores[i])
            claims = self.claims[node]
            for source in (branch.source,) if branch.proposers is None else branch.proposers[i]:
                claims[source] = claim
                score = min(probability(request_id, source, self.depths[node], claim), 1.0)
                self.scores[node] = max(self.scores[node], score)

    def best(self, n_nodes: int) -> Branch | None:
        """The ``n_nodes`` nodes of highest path probability, impossible ones left out; None if there are none."""
        reach = self.reach()
        order = [node for node in self.ranked() if reach[node] > 0.0][:n_nodes]
        if not order:
            return None
        place = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
        return Branch(
            [self.tokens[node] for node in order],
            self._name,
            [place[self.parents[node]] for node in order],
            scores=[self.scores[node] for node in order],
            proposers=[tuple(self.claims[node]) for node in order],
        )

    def ranked(self) -> list[int]:
        """All nodes by path probability, best first; a parent always comes before its children."""
        reach = self.reach()
        return sorted(range(len(reach)), key=lambda node: -reach[node])

    def reach(self) -> list[float]:
        """Path probability of every node; never above its parent's."""
        reach: list[float] = []
        for parent, score in zip(self.parents, self.scores, strict=True):
            reach.append(score if parent == ROOT else reach[parent] * score)
        return reach

    def claims_of(self, tree: TokenTree) -> list[Mapping[str, float | None]]:
        """The claims for every node of a tree composed from these candidates; none for nodes that came otherwise."""
        nodes: list[int | None] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            above = ROOT if parent == ROOT else nodes[parent]
            nodes.append(None if above is None else self._index.get((above, token)))
        return [{} if node is None else self.claims[node] for node in nodes]

    def _node(self, token: int, parent: int) -> int:
        known = self._index.get((parent, token))
        if known is not None:
            return known
        node = self._index[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self.scores.append(0.0)
        self.claims.append({})
        return node
