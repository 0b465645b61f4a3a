"""The proposals of one request's sources, in the order in which ``auto`` spends nodes on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from msgspec.structs import replace

from engine.best_first.lists import best_nodes, parents_among
from engine.protocol import Branch
from engine.tree import ROOT
from speculators.auto.calibration import DEPTHS
from speculators.mixing.merged import MergedDrafts

DEFAULT_CLAIM = 0.5  # of a node that was drawn, or whose source claims nothing; calibration corrects it


@dataclass(slots=True)
class RankedNodes:
    """Nodes of a branch in the order in which they may be taken; any number of first ones is a branch again."""

    branch: Branch
    reach: list[float]  # calibrated path probabilities in that order, not increasing
    order: list[int] | None  # the nodes; None: as they are in the branch
    claims: Sequence[float]  # of all nodes of the branch, once their parents are accepted

    def take(self, count: int) -> tuple[list[Branch], list[float]]:
        """Return the first ``count`` nodes as a branch, or none, and their claims."""
        branch = self.branch
        if count == 0:
            return [], []
        if self.order is None:
            return [_first(branch, count)], list(self.claims[:count])
        kept = self.order[:count]
        claims = [self.claims[node] for node in kept]
        proposers = branch.proposers
        taken = Branch(
            [branch.tokens[node] for node in kept],
            branch.source,
            parents_among(kept, branch.above),
            scores=claims,
            proposers=None if proposers is None else [proposers[node] for node in kept],
        )
        return [taken], claims


def _first(branch: Branch, count: int) -> Branch:
    """Return the first ``count`` nodes of a drawn branch or a chain."""
    if count == len(branch.tokens):
        return branch
    parents = None if branch.parents is None else branch.parents[:count]
    scores = None if branch.scores is None else branch.scores[:count]
    proposers = None if branch.proposers is None else branch.proposers[:count]
    q = None if branch.q is None else branch.q[:count]
    return replace(branch, tokens=branch.tokens[:count], parents=parents, q=q, scores=scores, proposers=proposers)


def rank(name: str, branches: Sequence[Branch], factors: Sequence[float], budget: int) -> RankedNodes | None:
    """Return the ``budget`` best nodes of branches that are neither drawn nor probes; parents precede children.

    ``name`` is of the speculator that merges, ``factors`` multiply claims by depth.
    """
    if not branches:
        return None
    if len(branches) == 1 and branches[0].parents is None:
        chain = branches[0]
        claims = chain.scores or [DEFAULT_CLAIM] * len(chain.tokens)
        return RankedNodes(chain, _reach(chain, claims, factors)[:budget], None, claims)
    branch = _merged(name, branches)
    if branch is None:
        return None
    assert branch.scores is not None
    reach = _reach(branch, branch.scores, factors)
    order = best_nodes(reach, budget)
    return RankedNodes(branch, [reach[node] for node in order], order, branch.scores)


def rank_drawn(branch: Branch, factors: Sequence[float]) -> RankedNodes:
    """Return a branch that was drawn from ``q``, in drawn order.

    The acceptance test is valid for draws, not for a choice among them. The number of kept nodes may depend on their
    depths and on earlier steps, but never on the drawn tokens.
    """
    claims = [DEFAULT_CLAIM] * len(branch.tokens)
    return RankedNodes(branch, list(accumulate(_reach(branch, claims, factors), min)), None, claims)


def _reach(branch: Branch, claims: Sequence[float], factors: Sequence[float]) -> list[float]:
    """Return the calibrated path probability of every node; a claim that is not finite counts as 0."""
    reach: list[float] = []
    depths: list[int] = []
    for parent, claim in zip(branch.above, claims, strict=True):
        depth, above = (0, 1.0) if parent == ROOT else (depths[parent] + 1, reach[parent])
        p = claim * factors[depth if depth < DEPTHS else DEPTHS - 1]
        depths.append(depth)
        reach.append(above * p if p < 1.0 else above if p < inf else 0.0)
    return reach


def _merged(name: str, branches: Sequence[Branch]) -> Branch | None:
    """Return one branch with estimates, or None if there are no nodes."""
    if len(branches) == 1 and branches[0].parents is not None and branches[0].scores is not None:
        return branches[0]
    merged = MergedDrafts(name)
    for branch in branches:
        merged.add(branch, lambda source, depth, claim: DEFAULT_CLAIM if claim is None else claim)
    return merged.best(len(merged.tokens))
