"""Joins several methods, ``a+b+c``, in one tree.

Every part drafts as if the whole budget were its own. Equal prefixes are merged, and the nodes with the highest
estimated path probability are kept. Estimates are the parts' own, corrected by what the target accepts
(``speculators.mixing.estimates``). Probes only help later steps, so they get a share of the budget.

``mode="priority"`` spends the budget in the order of the names instead. Steps with a draft that was sampled from a
distribution ``q`` do so in any mode: the acceptance test ``min(1, p / q)`` does not allow a choice by score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.mixing.merged import CalibratedMerge
from speculators.node_counter import NodeCounter
from speculators.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class CombinationConfig(Settings):
    """How the parts of a combination share a tree."""

    mode: Literal["score", "priority"] = setting("score", "keep the most probable nodes, or go by the order of parts")
    probe_share: float = setting(0.25, "share of the nodes for probes of parts", at_least=0.0, at_most=1.0)
    weights: Mapping[str, float] = setting(dict, "source -> factor on its estimates; 1 if absent")
    limits: Mapping[str, int] = setting(dict, "part -> nodes it may propose per step; all if absent")

    def check(self) -> None:
        for field, values in (("weights", self.weights), ("limits", self.limits)):
            for name, value in values.items():
                if value < 0:
                    raise ConfigError(f"{field} is {value} for {name}; it must be at least 0")


class Combined(Speculator):
    """Merges the branches of its parts; a part that fails is switched off for that request.

    Raises:
        UnknownMethodError: two parts need states that the target cannot give together.
    """

    def __init__(self, parts: Sequence[Speculator], config: CombinationConfig | None = None) -> None:
        assert parts, "nothing to combine"
        self._config = config or CombinationConfig()
        self._parts = [FaultIsolated(part) for part in parts]
        self.name = "+".join(part.name for part in parts)
        self._merge = CalibratedMerge(self.name, self._config.weights)
        try:
            self.needs = reduce(Needs.merge, (part.needs for part in parts), Needs())
        except ValueError as error:
            raise UnknownMethodError(f"{self.name} cannot be combined: {error}", "method") from error

    def begin(self, view: RequestView) -> None:
        self._merge.begin(view)
        for part in self._parts:
            part.begin(view)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        return self.propose_batch((view,), (budget,))[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Return each request's branches; every part drafts once for all requests."""
        if self._config.mode == "priority":
            return self._in_order(views, budgets)
        drafts: list[list[Branch]] = [[] for _ in views]
        for part in self._parts:
            limits = [min(budget, self._config.limits.get(part.name, budget)) for budget in budgets]
            for draft, branches in zip(drafts, part.propose_batch(views, limits), strict=True):
                draft += branches
        return [*map(self._choose, views, drafts, budgets)]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        self._merge.observe(view, outcome)
        for part in self._parts:
            part.observe(view, outcome)

    def end(self, view: RequestView) -> None:
        self._merge.end(view)
        for part in self._parts:
            part.end(view)

    def _choose(self, view: RequestView, branches: list[Branch], budget: int) -> list[Branch]:
        """Return the best nodes of all branches as one branch, and the probes."""
        guesses = [branch for branch in branches if not branch.probe]
        probes = [branch for branch in branches if branch.probe]
        if any(branch.q is not None for branch in guesses):
            return branches  # the composer cuts them, in order
        reserved = min(int(budget * self._config.probe_share), sum(len(probe.tokens) for probe in probes))
        return self._merge.best(view, guesses, budget - reserved) + probes

    def _in_order(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Return the parts' branches in their order.

        ``budget // (2 * n_parts)`` nodes are reserved for every later part; a part may use all other nodes.
        """
        drafts: list[list[Branch]] = [[] for _ in views]
        counters = [NodeCounter() for _ in views]
        for n_later, part in zip(reversed(range(len(self._parts))), self._parts, strict=True):
            limits = []
            for budget, counter in zip(budgets, counters, strict=True):
                free = budget - counter.n_nodes - n_later * (budget // (2 * len(self._parts)))
                limits.append(min(free, self._config.limits.get(part.name, budget)))
            for draft, counter, branches in zip(drafts, counters, part.propose_batch(views, limits), strict=True):
                for branch in branches:
                    counter.add_branch(branch)
                draft += branches
        return drafts
