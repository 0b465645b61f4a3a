"""Merges the drafts of several sources into one tree and keeps its most probable nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from engine.best_first import best_nodes, parents_among, path_probabilities
from engine.protocol import Branch, Outcome, RequestView
from engine.tree import ROOT, TokenTree
from speculators.mixing.estimates import AcceptanceSums, Claims, SourceEstimates
from speculators.tenant_state import TenantState

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
            node = self._node(int(token), ROOT if above == ROOT else nodes[above])
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

    def _node(self, token: int, parent: int) -> int:
        node = self._nodes.get((parent, token))
        if node is None:
            node = self._nodes[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
            self.scores.append(0.0)
            self.claims.append({})
        return node


class CalibratedMerge:
    """Chooses the best nodes of several sources, whose estimates it corrects by what the target accepts.

    Args:
        name: source of the merged branches.
        weights: source -> factor on its estimates; 1 if absent.
    """

    def __init__(self, name: str, weights: Mapping[str, float] | None = None) -> None:
        self._name = name
        self._weights = weights or {}
        self._by_scope: TenantState[AcceptanceSums] = TenantState()
        self._estimates: dict[int, SourceEstimates] = {}  # by request id
        self._drafted: dict[int, MergedDrafts] = {}  # request id -> drafts of the current step

    def begin(self, view: RequestView) -> None:
        self._estimates[view.request_id] = SourceEstimates(self._by_scope.of(view.request.scope, AcceptanceSums))

    def best(self, view: RequestView, branches: Sequence[Branch], n_nodes: int) -> list[Branch]:
        """Return the ``n_nodes`` nodes of highest estimated path probability as one branch, or nothing."""
        drafts = self._drafted[view.request_id] = MergedDrafts(self._name)
        estimate, weights = self._estimates[view.request_id].of_step(), self._weights

        def weighted(source: str, depth: int, claim: float | None) -> float:
            return weights.get(source, 1.0) * estimate(source, depth, claim)

        for branch in branches:
            drafts.add(branch, weighted if weights else estimate)
        best = drafts.best(n_nodes)
        return [] if best is None else [best]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        drafts = self._drafted.pop(view.request_id, None)
        if drafts is not None and len(outcome.tree):
            self._estimates[view.request_id].observe(outcome, drafts.claims_of(outcome.tree))

    def end(self, view: RequestView) -> None:
        self._estimates.pop(view.request_id, None)
        self._drafted.pop(view.request_id, None)
