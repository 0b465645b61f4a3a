"""What the sources proposed for one request, in the order in which ``auto`` would spend nodes on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from msgspec.structs import replace

from engine.protocol import Branch
from engine.tree import ROOT
from speculators.auto.calibration import DEPTHS
from speculators.mixing.candidates import Candidates

UNTOLD_CLAIM = 0.5  # of a node that was drawn, or whose source claims nothing: calibration does the rest


@dataclass(slots=True)
class Ranked:
    """Nodes of one branch in the order in which they may be taken; any number of first ones is a branch again."""

    branch: Branch
    reach: list[float]  # calibrated path probabilities in that order, not increasing
    order: list[int] | None  # the nodes; None: as they are in the branch
    claims: Sequence[float]  # of the nodes, as they are in the branch, once their parents are accepted

    def take(self, count: int) -> tuple[list[Branch], list[float]]:
        """The first ``count`` nodes as a branch, none if there are none, and their claims."""
        branch = self.branch
        if count == 0:
            return [], []
        if self.order is None:
            return [_first(branch, count)], list(self.claims[:count])
        kept = self.order[:count]
        assert branch.parents is not None
        place = [ROOT] * (len(branch.tokens) + 1)  # the last is the root's own: its number is -1
        for i, node in enumerate(kept):
            place[node] = i
        claims = [self.claims[node] for node in kept]
        proposers = branch.proposers
        taken = Branch(
            [branch.tokens[node] for node in kept],
            branch.source,
            [place[branch.parents[node]] for node in kept],
            scores=claims,
            proposers=None if proposers is None else [proposers[node] for node in kept],
        )
        return [taken], claims


def _first(branch: Branch, count: int) -> Branch:
    """The first ``count`` nodes of a drawn branch or a chain; all of them are the branch itself."""
    if count == len(branch.tokens):
        return branch
    parents = None if branch.parents is None else branch.parents[:count]
    scores = None if branch.scores is None else branch.scores[:count]
    proposers = None if branch.proposers is None else branch.proposers[:count]
    q = None if branch.q is None else branch.q[:count]
    return replace(branch, tokens=branch.tokens[:count], parents=parents, q=q, scores=scores, proposers=proposers)


def rank(name: str, branches: Sequence[Branch], factors: Sequence[float], budget: int) -> Ranked | None:
    """The ``budget`` best nodes of branches that were chosen, best first; a parent always comes before its children.

    Args:
        name: of the speculator that merges.
        branches: neither drawn nor probes.
        factors: to multiply claims with, by depth.
        budget: nodes.
    """
    if len(branches) == 1 and branches[0].parents is None:
        return _rank_chain(branches[0], factors, budget)
    branch = _merged(name, branches)
    if branch is None:
        return None
    assert branch.scores is not None
    reach = _reach(branch, branch.scores, factors)
    order = sorted(range(len(reach)), key=reach.__getitem__, reverse=True)[:budget]  # equals stay as they are
    return Ranked(branch, [reach[node] for node in order], order, branch.scores)


def rank_drawn(branch: Branch, factors: Sequence[float]) -> Ranked:
    """A branch that was drawn from ``q``, in drawn order.

    The acceptance test holds for draws, not for a choice among them: how many are kept depends on their depths and on
    earlier steps, never on which tokens were drawn.
    """
    claims = [UNTOLD_CLAIM] * len(branch.tokens)
    return Ranked(branch, list(accumulate(_reach(branch, claims, factors), min)), None, claims)


def _rank_chain(branch: Branch, factors: Sequence[float], budget: int) -> Ranked:
    """A chain's nodes are in order already."""
    claims = branch.scores or [UNTOLD_CLAIM] * len(branch.tokens)
    return Ranked(branch, _reach(branch, claims, factors)[:budget], None, claims)


def _reach(branch: Branch, claims: Sequence[float], factors: Sequence[float]) -> list[float]:
    """The calibrated path probabilities of a branch's nodes, as they are in it; a claim that is no number counts 0."""
    reach: list[float] = []
    depths: list[int] = []
    for parent, claim in zip(branch.above, claims, strict=True):
        depth, above = (0, 1.0) if parent == ROOT else (depths[parent] + 1, reach[parent])
        p = claim * factors[depth if depth < DEPTHS else DEPTHS - 1]
        depths.append(depth)
        reach.append(above * p if p < 1.0 else above if p < inf else 0.0)
    return reach


def _merged(name: str, branches: Sequence[Branch]) -> Branch | None:
    """One branch with estimates; None if no source proposed anything."""
    if not branches:
        return None
    only = branches[0]
    if len(branches) == 1 and only.parents is not None and only.scores is not None:
        return only
    candidates = Candidates(name)
    for branch in branches:
        candidates.add(branch, _claim_or_guess, 0)
    return candidates.best(len(candidates.tokens))


def _claim_or_guess(request_id: int, source: str, depth: int, claim: float | None) -> float:
    return UNTOLD_CLAIM if claim is None else claim
