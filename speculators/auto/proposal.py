"""The proposals of one request's sources in one step, and the nodes that are taken of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.protocol import Branch, RequestView
from speculators.auto.prices import Price
from speculators.auto.ranking import RankedNodes, rank, rank_drawn
from speculators.auto.requests import RequestState


@dataclass(slots=True)
class Proposal:
    """One request of a call to draft."""

    place: int  # among the requests of the call
    view: RequestView
    state: RequestState
    budget: int  # nodes
    all_draft: bool = True  # whether all sources are asked, or those that draft from text
    branches: list[Branch] = field(default_factory=list)
    ranked: list[RankedNodes] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # nodes of each of ``ranked`` that are worth it
    probes: list[Branch] = field(default_factory=list)

    @property
    def n_nodes(self) -> int:
        """Nodes that could be taken."""
        return sum(len(ranked.reach) for ranked in self.ranked) + sum(len(probe.tokens) for probe in self.probes)

    def nodes_to_ask(self, reserve: int) -> int:
        """Return how many nodes to ask for: finding candidates takes time, most of it for unlikely ones."""
        return min(self.budget, int(2.0 * self.state.recent_nodes) + reserve)

    def rank(self, name: str) -> None:
        """Order the proposed nodes as they may be taken; ``name`` is of the speculator that merges."""
        factors = self.state.factors
        guesses = [branch for branch in self.branches if not branch.probe]
        self.probes = [branch for branch in self.branches if branch.probe]
        self.ranked = [rank_drawn(branch, factors) for branch in guesses if branch.q is not None]
        best = rank(name, [branch for branch in guesses if branch.q is None], factors, self.budget)
        if best is not None:
            self.ranked.append(best)

    def take(self, price: Price | None, n_taken: int) -> list[Branch]:
        """Return the nodes that are worth it as branches, and probes; all requests together have ``n_taken`` nodes."""
        taken: list[Branch] = []
        state = self.state
        state.claims = []
        for ranked, count in zip(self.ranked, self.counts, strict=True):
            branches, claims = ranked.take(count)
            taken += branches
            state.claims += claims
        n = len(state.claims)
        state.recent_nodes = max(float(n), state.recent_nodes + 0.25 * (n - state.recent_nodes))
        return taken + self._affordable(price, n_taken)

    def _affordable(self, price: Price | None, n_taken: int) -> list[Branch]:
        """Return the first probes, up to the time that their sources saved recently.

        A probe claims nothing: it fills dictionaries from which later drafts come.
        """
        if price is None or not self.probes:
            return self.probes
        state, kept, n = self.state, 0, 0
        room = self.budget - len(state.claims)
        worth = state.probe_gain * price.plain / (price.batch * (1.0 + state.gain))  # seconds, as prices were measured
        for probe in self.probes:
            more = n + len(probe.tokens)
            seconds = float(price.by_nodes[n_taken + more] - price.by_nodes[n_taken]) + (kept + 1) * price.read_row
            if more > room or seconds > worth:
                break
            kept, n = kept + 1, more
        state.count_probes(self.probes[:kept])
        return self.probes[:kept]
