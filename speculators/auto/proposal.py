"""What one request's sources propose in one step, and what is taken of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.protocol import Branch, RequestView
from speculators.auto.prices import Price
from speculators.auto.ranking import Ranked, rank, rank_drawn
from speculators.auto.requests import RequestState


@dataclass(slots=True)
class Proposal:
    """A request that is asked for a draft, from the question to the answer."""

    place: int  # among the requests of the call
    view: RequestView
    state: RequestState
    budget: int  # nodes
    all_draft: bool = True  # whether all sources are asked, or those that draft from text
    branches: list[Branch] = field(default_factory=list)
    ranked: list[Ranked] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # nodes of each of these that pay
    probes: list[Branch] = field(default_factory=list)

    @property
    def n_nodes(self) -> int:
        """Nodes that could be taken."""
        return sum(len(ranked.reach) for ranked in self.ranked) + sum(len(probe.tokens) for probe in self.probes)

    def nodes_to_ask(self, reserve: int) -> int:
        """Nodes to ask for: finding candidates takes time too, most of it for unlikely ones."""
        return min(self.budget, int(2.0 * self.state.lately) + reserve)

    def rank(self, name: str) -> None:
        """Put what was proposed in the order in which it may be taken; ``name`` is of the speculator that merges."""
        factors = self.state.factors
        guesses = [branch for branch in self.branches if not branch.probe]
        self.probes = [branch for branch in self.branches if branch.probe]
        self.ranked = [rank_drawn(branch, factors) for branch in guesses if branch.q is not None]
        best = rank(name, [branch for branch in guesses if branch.q is None], factors, self.budget)
        if best is not None:
            self.ranked.append(best)

    def take(self, price: Price | None, n_taken: int) -> list[Branch]:
        """The nodes that pay, as branches, and the probes.

        Args:
            price: of the step; None: nodes are free.
            n_taken: nodes of all requests that pay.
        """
        taken: list[Branch] = []
        state = self.state
        state.claims = []
        for ranked, count in zip(self.ranked, self.counts, strict=True):
            branches, claims = ranked.take(count)
            taken += branches
            state.claims += claims
        n = len(state.claims)
        state.lately = max(float(n), state.lately + 0.25 * (n - state.lately))
        return taken + self._affordable(price, n_taken)

    def _affordable(self, price: Price | None, n_taken: int) -> list[Branch]:
        """The first probes, as many as cost no more time than what their sources were right about lately saves.

        A probe claims nothing: it fills dictionaries from which later drafts come.
        """
        if price is None or not self.probes:
            return self.probes
        state, kept, n = self.state, 0, 0
        room = self.budget - len(state.claims)
        worth = state.probe_gain * price.plain / (price.batch * (1.0 + state.gain))  # seconds, as prices were measured
        for probe in self.probes:
            more = n + len(probe.tokens)
            seconds = float(price.wider[n_taken + more] - price.wider[n_taken]) + (kept + 1) * price.read_row
            if more > room or seconds > worth:
                break
            kept, n = kept + 1, more
        state.probe(self.probes[:kept])
        return self.probes[:kept]
