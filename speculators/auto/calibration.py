"""Calibration of ``auto``: how often the claims of a whole tree came true, by depth.

It is coarser than ``speculators.mixing.estimates``, which has estimates per source, and cheap enough for every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from engine.tree import ROOT

DEPTHS = 6  # depths with an estimate of their own; the last one includes all deeper ones
PRIOR = 4.0  # weight of the shared calibration against a request's own, in claimed tokens
FADE = 0.97  # of older observations, per step


class DepthCalibration:
    """Claimed and true acceptances by depth, ``[DEPTHS]`` each."""

    __slots__ = ("claimed", "hits")

    def __init__(self) -> None:
        self.claimed = [0.0] * DEPTHS
        self.hits = [0.0] * DEPTHS

    def add(self, claimed: Sequence[float], hits: Sequence[float]) -> None:
        """Add the sums of one step, ``[DEPTHS]`` each; a depth whose claims are not finite is ignored."""
        for depth in range(DEPTHS):
            if isfinite(claimed[depth]):
                self.claimed[depth] = self.claimed[depth] * FADE + claimed[depth]
                self.hits[depth] = self.hits[depth] * FADE + hits[depth]

    def fade(self, steps: int) -> None:
        """Reduce the weight of observations after ``steps`` without a draft."""
        share = FADE**steps
        self.claimed = [value * share for value in self.claimed]
        self.hits = [value * share for value in self.hits]

    def factors(self, shared: DepthCalibration) -> list[float]:
        """Return the factors of claims by depth, between 1/50 and 2."""
        factors = []
        for depth in range(DEPTHS):
            first = (1.0 + shared.hits[depth]) / (1.0 + shared.claimed[depth])
            factor = (PRIOR * first + self.hits[depth]) / (PRIOR + self.claimed[depth])
            factors.append(min(max(factor, 0.02), 2.0))
        return factors


def claims_and_hits(
    children: Sequence[Sequence[int]], claims: Sequence[float], accepted: Sequence[int], n_decided: int
) -> tuple[list[float], list[float]]:
    """Return sums by depth, ``[DEPTHS]`` each: claims of the nodes that the target decided about, and accepted nodes.

    Args:
        children: ``[n_nodes + 1]``, of the root and of every node.
        claims: ``[n_nodes]``.
        accepted: the accepted path.
        n_decided: depths for which the target's token is known.
    """
    claimed, hits = [0.0] * DEPTHS, [0.0] * DEPTHS
    for depth, above in enumerate((ROOT, *accepted)[:n_decided]):
        for node in children[above + 1]:
            claimed[min(depth, DEPTHS - 1)] += claims[node]
    for depth in range(len(accepted)):
        hits[min(depth, DEPTHS - 1)] += 1.0
    return claimed, hits
