"""How far the claims of a whole tree came true, by depth: the calibration of ``auto``.

Coarser than ``speculators.mixing.estimates``, which tells sources apart, and cheap enough for every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from engine.protocol import Outcome
from engine.tree import ROOT

DEPTHS = 6  # depths whose estimates are calibrated apart; the last one stands for all deeper ones
PRIOR = 4.0  # claimed tokens that the shared calibration weighs, against a request's own
FADE = 0.97  # of older observations, per step


class DepthCalibration:
    """Claimed and true acceptances by depth, ``[DEPTHS]`` each."""

    __slots__ = ("claimed", "hits")

    def __init__(self) -> None:
        self.claimed = [0.0] * DEPTHS
        self.hits = [0.0] * DEPTHS

    def add(self, claimed: Sequence[float], hits: Sequence[float]) -> None:
        """One step's sums, ``[DEPTHS]`` each; a depth whose claims are no numbers is passed over, they would stay."""
        for depth in range(DEPTHS):
            if not isfinite(claimed[depth]):
                continue
            self.claimed[depth] = self.claimed[depth] * FADE + claimed[depth]
            self.hits[depth] = self.hits[depth] * FADE + hits[depth]

    def fade(self, steps: int) -> None:
        """Steps without a draft: what was seen before them counts less."""
        share = FADE**steps
        self.claimed = [value * share for value in self.claimed]
        self.hits = [value * share for value in self.hits]

    def factors(self, shared: DepthCalibration) -> list[float]:
        """What to multiply claims with, by depth; within 1/50 and 2."""
        factors = []
        for depth in range(DEPTHS):
            first = (1.0 + shared.hits[depth]) / (1.0 + shared.claimed[depth])
            factor = (PRIOR * first + self.hits[depth]) / (PRIOR + self.claimed[depth])
            factors.append(min(max(factor, 0.02), 2.0))
        return factors


def claims_and_hits(outcome: Outcome, claims: Sequence[float]) -> tuple[list[float], list[float]]:
    """Sums by depth over the nodes the target decided about: what was claimed, and how many were accepted.

    Args:
        outcome: of the tree.
        claims: of its nodes, ``[n_nodes]``.
    """
    claimed, hits = [0.0] * DEPTHS, [0.0] * DEPTHS
    for depth, above in enumerate((ROOT, *outcome.accepted)):
        for node in outcome.tree.children[above + 1]:
            claimed[min(depth, DEPTHS - 1)] += claims[node]
    for depth in range(len(outcome.accepted)):
        hits[min(depth + 1, DEPTHS) - 1] += 1.0
    return claimed, hits
