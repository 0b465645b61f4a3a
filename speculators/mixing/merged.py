"""Merges the drafts of several sources into one tree and keeps its most probable nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from engine.best_first.lists import best_nodes, parents_among, path_probabilities
from engine.protocol import Branch
from engine.tree import ROOT, TokenTree
from speculators.mixing.estimates import Claims

DEFAULT_CLAIM = 0.5  # probability of a node that was drawn, or whose source claims nothing; calibration corrects it

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
            reach=[reach[node] for node in kept],
        )

    def claims_of(self, tree: TokenTree) -> list[Claims]:
        """Return the claims for every node of a composed tree; none for a node that was not merged here."""
        nodes: list[int | None] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            above = ROOT if parent == ROOT else nodes[parent]
            nodes.append(None if above is None else self._nodes.get((above, token)))
        return [{} if node is None else self.claims[node] for node in nodes]


def ranked(name: str, branches: list[Branch], budget: int) -> list[Branch]:
    """Return branches, without probes, of which any number of first nodes are the ones to keep; each has its ``reach``.

    Branches that were drawn from ``q`` keep their order: the acceptance test is valid for draws, not for a choice among
    them. All others become one, of the ``budget`` most probable nodes; ``name`` is of the speculator that merges.
    """
    if len(branches) == 1 and branches[0].reach is not None and not branches[0].probe:
        return branches  # nearly always
    drawn = [branch for branch in branches if branch.q is not None and not branch.probe]
    others = [branch for branch in branches if branch.q is None and not branch.probe]
    best = _best_of(name, others, budget) if others else None
    found = drawn if best is None else [*drawn, best]
    return [branch if branch.reach is not None else _with_reach(branch) for branch in found]


def _best_of(name: str, branches: Sequence[Branch], budget: int) -> Branch | None:
    if len(branches) == 1 and (branches[0].reach is not None or branches[0].parents is None):
        return branches[0]
    merged = MergedDrafts(name)
    for branch in branches:
        merged.add(branch, lambda source, depth, claim: DEFAULT_CLAIM if claim is None else claim)
    return merged.best(budget)


def _with_reach(branch: Branch) -> Branch:
    claims = branch.scores if branch.scores is not None and branch.q is None else [DEFAULT_CLAIM] * len(branch.tokens)
    return replace(branch, reach=path_probabilities(branch.above, claims))


def first_nodes(branch: Branch, count: int) -> Branch:
    """Return the first ``count`` nodes of a branch."""
    if count == len(branch.tokens):
        return branch
    scores, proposers = branch.scores, branch.proposers
    return Branch(
        branch.tokens[:count],
        branch.source,
        None if branch.parents is None else branch.parents[:count],
        branch.probe,
        None if branch.q is None else branch.q[:count],
        None if scores is None else scores[:count],
        None if proposers is None else proposers[:count],
    )
