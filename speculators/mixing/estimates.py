"""How far a source's own estimates can be trusted: kept per request, source and depth.

A node whose parent was accepted has been *tried*: the target wrote its token or not. What sources claimed for their
tried nodes against what came true gives a factor per source and depth; a source that claims nothing gets its plain
rate of acceptance there. Both start from what earlier requests of the same scope have shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.protocol import Outcome
from engine.tree import ROOT, TokenTree
from speculators.tenant_state import TenantState

DEPTHS = 6  # depths told apart; the last one stands for all deeper ones
PRIOR = 8.0  # tried nodes that the shared estimate weighs, against a request's own
FIRST_CLAIM = 0.35  # of a source that claims nothing, before anything was tried
FADE = 0.98  # of older observations of a source and depth, per tried node


class _Counts:
    """Sums per (source, depth)."""

    __slots__ = ("claimed", "hits", "tried")

    def __init__(self) -> None:
        self.tried: dict[tuple[str, int], float] = {}
        self.claimed: dict[tuple[str, int], float] = {}
        self.hits: dict[tuple[str, int], float] = {}

    def add(self, key: tuple[str, int], claim: float, hit: bool) -> None:
        self.tried[key] = self.tried.get(key, 0.0) * FADE + 1.0
        self.claimed[key] = self.claimed.get(key, 0.0) * FADE + claim
        self.hits[key] = self.hits.get(key, 0.0) * FADE + hit


class Estimates:
    """Estimates of all live requests, and the ones a new request starts from."""

    def __init__(self) -> None:
        self._shared: TenantState[_Counts] = TenantState()
        self._own: dict[int, tuple[_Counts, _Counts]] = {}  # request id -> its own counts, those of its scope

    def begin(self, request_id: int, scope: str = "") -> None:
        """A request that has shown nothing yet."""
        self._own[request_id] = (_Counts(), self._shared.of(scope, _Counts))

    def end(self, request_id: int) -> None:
        """Forget a request."""
        self._own.pop(request_id, None)

    def probability(self, request_id: int, source: str, depth: int, claim: float | None) -> float:
        """The calibrated estimate for a node at ``depth`` (1 for children of the root) that ``source`` proposes."""
        key = (source, min(depth, DEPTHS))
        own, shared = self._own[request_id]
        if claim is None:
            first = (FIRST_CLAIM * PRIOR + shared.hits.get(key, 0.0)) / (PRIOR + shared.tried.get(key, 0.0))
            rate = (first * PRIOR + own.hits.get(key, 0.0)) / (PRIOR + own.tried.get(key, 0.0))
            return min(max(rate, 1e-4), 1.0)
        return min(max(claim * self.factor(request_id, key), 1e-6), 1.0)

    def factor(self, request_id: int, key: tuple[str, int]) -> float:
        """What came true of a source's claims at a depth, as a multiple of what it claimed; within 1/4 and 4."""
        own, shared = self._own[request_id]
        first = (1.0 + shared.hits.get(key, 0.0)) / (1.0 + shared.claimed.get(key, 0.0))
        factor = (2.0 * first + own.hits.get(key, 0.0)) / (2.0 + own.claimed.get(key, 0.0))
        return min(max(factor, 0.25), 4.0)

    def observe(self, request_id: int, outcome: Outcome, claims: Sequence[Mapping[str, float | None]]) -> None:
        """Learn from one verified tree; ``claims`` ``[n_nodes]`` hold every proposer's own estimate of a node."""
        tree = outcome.tree
        accepted = set(outcome.accepted)
        for node in tried_nodes(tree, outcome.accepted):
            depth = min(tree.depths[node], DEPTHS)
            for source, claim in claims[node].items():
                for counts in self._own[request_id]:
                    counts.add((source, depth), FIRST_CLAIM if claim is None else claim, node in accepted)


def tried_nodes(tree: TokenTree, accepted: Sequence[int]) -> list[int]:
    """Nodes the target decided about: children of the root and of accepted nodes, probes left out."""
    return [node for above in (ROOT, *accepted) for node in tree.children[above + 1]]
