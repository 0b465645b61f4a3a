"""Joins several methods, ``a+b+c``, in one tree.

Every part drafts as if the whole budget were its own. Equal prefixes are merged, and the nodes with the highest
estimated path probability are kept. Estimates are the parts' own, corrected by what the target accepts
(``speculators.mixing.estimates``). Probes only help later steps, so they get a share of the budget.

A step with a draft that was sampled from a distribution ``q`` keeps the order of the names instead: the acceptance test
``min(1, p / q)`` does not allow a choice by score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from engine.errors import UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from speculators.mixing.estimates import AcceptanceSums, SourceEstimates
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.mixing.merged import MergedDrafts
from speculators.per_request import PerRequest
from speculators.settings import Settings, setting
from speculators.tenant_state import TenantState


@dataclass(frozen=True, slots=True)
class CombinationConfig(Settings):
    """How the parts of a combination share a tree."""

    probe_share: float = setting(0.25, "share of the nodes for probes of parts", at_least=0.0, at_most=1.0)


class Combined(PerRequest[SourceEstimates]):
    """Merges the branches of its parts; a part that fails is switched off for that request.

    Raises:
        UnknownMethodError: two parts need states that the target cannot give together.
    """

    def __init__(self, parts: Sequence[Speculator], config: CombinationConfig | None = None) -> None:
        super().__init__()
        self._config = config or CombinationConfig()
        self._parts = [FaultIsolated(part) for part in parts]
        self._by_scope: TenantState[AcceptanceSums] = TenantState()
        self._drafted: dict[int, MergedDrafts] = {}  # request id -> drafts of the current step
        self.name = "+".join(part.name for part in parts)
        try:
            self.needs = reduce(Needs.merge, (part.needs for part in parts), Needs())
        except ValueError as error:
            raise UnknownMethodError(f"{self.name} cannot be combined: {error}", "method") from error

    def new_state(self, view: RequestView) -> SourceEstimates:
        return SourceEstimates(self._by_scope.of(view.request.scope, AcceptanceSums))

    def begin(self, view: RequestView) -> None:
        super().begin(view)
        for part in self._parts:
            part.begin(view)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        return self.propose_batch((view,), (budget,))[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Return each request's branches; every part drafts once for all requests."""
        drafts: list[list[Branch]] = [[] for _ in views]
        for part in self._parts:
            for draft, branches in zip(drafts, part.propose_batch(views, budgets), strict=True):
                draft += branches
        return [*map(self._choose, views, drafts, budgets)]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        drafts = self._drafted.pop(view.request_id, None)
        if drafts is not None and len(outcome.tree):
            self.states[view.request_id].observe(outcome, drafts.claims_of(outcome.tree))
        for part in self._parts:
            part.observe(view, outcome)

    def end(self, view: RequestView) -> None:
        super().end(view)
        self._drafted.pop(view.request_id, None)
        for part in self._parts:
            part.end(view)

    def _choose(self, view: RequestView, branches: list[Branch], budget: int) -> list[Branch]:
        """Return the best nodes of all branches as one branch, and the probes."""
        probes = [branch for branch in branches if branch.probe]
        if any(branch.q is not None for branch in branches if not branch.probe):
            return branches  # the composer cuts them, in order
        drafts = self._drafted[view.request_id] = MergedDrafts(self.name)
        estimate = self.states[view.request_id].of_step()
        for branch in branches:
            if not branch.probe:
                drafts.add(branch, estimate)
        reserved = min(int(budget * self._config.probe_share), sum(len(probe.tokens) for probe in probes))
        best = drafts.best(budget - reserved)
        return probes if best is None else [best, *probes]
