"""Several methods as one: ``a+b+c``, in priority order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from engine.errors import UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from speculators.guarded import Guarded
from speculators.node_count import NodeCounter


class Combined:
    """Asks every part and puts their branches one behind the other, the first part's first.

    Budget: with ``k`` parts, every part still to come is sure of ``budget // (2 * k)`` nodes; an earlier one may take
    everything else, and what it leaves passes on. So ``pld+spectra-core`` at 64 gives prompt lookup the 10 nodes it
    wants and the core 54, while in ``spectra-core+pld`` the core cannot take the last 16. Nodes are counted
    as the composer merges them. A part that fails is switched off for that request, the others go on.

    Raises:
        UnknownMethodError: two parts want states that the target cannot give together.
    """

    def __init__(self, parts: Sequence[Speculator]) -> None:
        assert parts, "nothing to combine"
        self._parts = [Guarded(part) for part in parts]
        self.name = "+".join(part.name for part in parts)
        try:
            self.needs = reduce(Needs.merge, (part.needs for part in parts), Needs())
        except ValueError as error:
            raise UnknownMethodError(f"{self.name} cannot be combined: {error}", "method") from error

    def begin(self, request: RequestView) -> None:
        """Forwarded to all parts."""
        for part in self._parts:
            part.begin(request)

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        """All parts' branches, at most ``budget`` nodes once merged."""
        return self.propose_batch((request,), (budget,))[0]

    def propose_batch(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """``propose`` for several requests; each part is asked once for all of them."""
        drafts: list[list[Branch]] = [[] for _ in requests]
        counters = [NodeCounter() for _ in requests]
        n_parts = len(self._parts)
        for index, part in enumerate(self._parts):
            n_later = n_parts - index - 1
            shares = [
                budget - counter.n_nodes - n_later * (budget // (2 * n_parts))
                for budget, counter in zip(budgets, counters, strict=True)
            ]
            for draft, counter, branches in zip(drafts, counters, part.propose_batch(requests, shares), strict=True):
                for branch in branches:
                    counter.add_branch(branch)
                draft += branches
        return drafts

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        """Forwarded to all parts."""
        for part in self._parts:
            part.observe(request, outcome)

    def end(self, request: RequestView) -> None:
        """Forwarded to all parts."""
        for part in self._parts:
            part.end(request)
