"""Corrects the estimates of sources by what the target accepts: per request, source and depth.

A node whose parent was accepted has been tried: the target either wrote its token or not. The hits of a source's tried
nodes, divided by the sum of its claims, give a factor on later claims. A source without claims gets its rate of hits.
Both start from what earlier requests of the same scope have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from engine.protocol import Outcome
from engine.tree import ROOT, TokenTree

DEPTHS = 6  # deeper nodes count as this deep
PRIOR = 8.0  # weight of the shared rate, in tried nodes
FIRST_CLAIM = 0.35  # claim of a source that makes none
FADE = 0.98  # weight of older observations per tried node

Claims = dict[str, "float | None"]  # source -> its own estimate of a node, None if it makes none


class AcceptanceSums(dict[tuple[str, int], tuple[float, float, float]]):
    """(source, depth) -> tried nodes, sum of their claims, and hits; older ones fade."""

    def __missing__(self, key: tuple[str, int]) -> tuple[float, float, float]:
        return 0.0, 0.0, 0.0

    def add(self, key: tuple[str, int], claim: float, hit: bool) -> None:
        tried, claimed, hits = self[key]
        self[key] = tried * FADE + 1.0, claimed * FADE + claim, hits * FADE + hit


class SourceEstimates:
    """Estimates of one request; ``shared`` are the counts of its scope."""

    def __init__(self, shared: AcceptanceSums) -> None:
        self._own, self._shared = AcceptanceSums(), shared

    def rate(self, source: str, depth: int) -> float:
        """Return the probability of a node of a source without claims."""
        tried, _, hits = self._shared[source, depth]
        first = (FIRST_CLAIM * PRIOR + hits) / (PRIOR + tried)
        tried, _, hits = self._own[source, depth]
        return min(max((first * PRIOR + hits) / (PRIOR + tried), 1e-4), 1.0)

    def factor(self, source: str, depth: int) -> float:
        """Return hits per claimed hit, within 1/4 and 4."""
        _, claimed, hits = self._shared[source, depth]
        first = (1.0 + hits) / (1.0 + claimed)
        _, claimed, hits = self._own[source, depth]
        return min(max((2.0 * first + hits) / (2.0 + claimed), 0.25), 4.0)

    def of_step(self) -> Callable[[str, int, float | None], float]:
        """Return a function of source, depth (1 for children of the root) and claim that estimates a node."""
        rate, factor = cache(self.rate), cache(self.factor)

        def estimate(source: str, depth: int, claim: float | None) -> float:
            depth = min(depth, DEPTHS)
            return rate(source, depth) if claim is None else min(max(claim * factor(source, depth), 1e-6), 1.0)

        return estimate

    def observe(self, outcome: Outcome, claims: Sequence[Claims]) -> None:
        """Count the tried nodes of a verified tree; ``claims`` ``[n_nodes]`` are those of its proposers."""
        accepted = set(outcome.accepted)
        for node in tried_nodes(outcome.tree, outcome.accepted):
            depth = min(outcome.tree.depths[node], DEPTHS)
            for source, claim in claims[node].items():
                for counts in (self._own, self._shared):
                    counts.add((source, depth), FIRST_CLAIM if claim is None else claim, node in accepted)


def tried_nodes(tree: TokenTree, accepted: Sequence[int]) -> list[int]:
    """Return the children of the root and of accepted nodes, without probes."""
    return [node for above in (ROOT, *accepted) for node in tree.children[above + 1]]
