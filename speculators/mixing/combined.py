"""Several methods as one: ``a+b+c``, in one tree.

Every part drafts as if the whole budget were its own; shared prefixes merge; then the nodes with the highest estimated
path probability are kept, of whichever part. Estimates are the parts' own claims, calibrated by what came true
(``speculators.mixing.estimates``). Probes are worth something only later and claim nothing: they get a share of the
budget.

``mode="priority"`` spends the budget in the order of the names instead. So does every step with a draft that was
sampled from a distribution ``q`` of its own: the acceptance test ``min(1, p / q)`` holds for draws, not for a choice
among them by score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from speculators.mixing.candidates import Candidates
from speculators.mixing.estimates import Estimates
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.node_counter import NodeCounter


@dataclass(frozen=True, slots=True)
class CombinationConfig:
    """How parts share a tree.

    Raises:
        ConfigError: a value is out of range.
    """

    mode: Literal["score", "priority"] = "score"
    probe_share: float = 0.25  # of the budget, for probes of parts that have any
    weights: Mapping[str, float] = field(default_factory=dict)  # source -> factor on its estimates; 1 if absent
    limits: Mapping[str, int] = field(default_factory=dict)  # part -> nodes it may propose per step; else the budget

    def __post_init__(self) -> None:
        if self.mode not in ("score", "priority"):
            raise ConfigError(f"combination: mode must be score or priority, got {self.mode!r}")
        if not 0.0 <= self.probe_share <= 1.0:
            raise ConfigError(f"combination: probe_share must lie in 0..1, got {self.probe_share}")
        for name, value in (*self.weights.items(), *self.limits.items()):
            if value < 0:
                raise ConfigError(f"combination: weights and limits must be at least 0, got {value} for {name}")


class Combined:
    """Merges the parts' branches. A part that fails is switched off for that request, the others go on.

    Raises:
        UnknownMethodError: two parts want states that the target cannot give together.
    """

    def __init__(self, parts: Sequence[Speculator], config: CombinationConfig | None = None) -> None:
        assert parts, "nothing to combine"
        self._config = config or CombinationConfig()
        self._parts = [FaultIsolated(part) for part in parts]
        self._estimates = Estimates()
        self._drafted: dict[int, Candidates] = {}  # request id -> what its current tree was chosen from
        self.name = "+".join(part.name for part in parts)
        try:
            self.needs = reduce(Needs.merge, (part.needs for part in parts), Needs())
        except ValueError as error:
            raise UnknownMethodError(f"{self.name} cannot be combined: {error}", "method") from error

    def begin(self, view: RequestView) -> None:
        """Forwarded to all parts."""
        self._estimates.begin(view.request_id, view.request.scope)
        for part in self._parts:
            part.begin(view)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """All parts' branches, at most ``budget`` nodes once merged."""
        return self.propose_batch((view,), (budget,))[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """``propose`` for several requests; each part is asked once for all of them."""
        if self._config.mode == "priority":
            return self._in_order(views, budgets)
        every = self._gather(views, budgets)
        return [
            self._choose(view, branches, budget) for view, branches, budget in zip(views, every, budgets, strict=True)
        ]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Forwarded to all parts; what they claimed is held against what came true."""
        candidates = self._drafted.pop(view.request_id, None)
        if candidates is not None and len(outcome.tree):
            self._estimates.observe(view.request_id, outcome, candidates.claims_of(outcome.tree))
        for part in self._parts:
            part.observe(view, outcome)

    def end(self, view: RequestView) -> None:
        """Forwarded to all parts."""
        self._estimates.end(view.request_id)
        self._drafted.pop(view.request_id, None)
        for part in self._parts:
            part.end(view)

    def _gather(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """Every part's branches for every request, in the order of the parts."""
        every: list[list[Branch]] = [[] for _ in views]
        for part in self._parts:
            shares = [min(budget, self._config.limits.get(part.name, budget)) for budget in budgets]
            for branches, more in zip(every, part.propose_batch(views, shares), strict=True):
                branches += more
        return every

    def _choose(self, view: RequestView, branches: list[Branch], budget: int) -> list[Branch]:
        """The best nodes of all branches as one branch, and probes."""
        guesses = [branch for branch in branches if not branch.probe]
        probes = [branch for branch in branches if branch.probe]
        if any(branch.q is not None for branch in guesses):
            return branches  # the composer cuts them, in order
        candidates = self._candidates(view, guesses)
        reserved = min(int(budget * self._config.probe_share), sum(len(probe.tokens) for probe in probes))
        chosen = candidates.best(budget - reserved)
        self._drafted[view.request_id] = candidates
        return ([chosen] if chosen is not None else []) + probes

    def _candidates(self, view: RequestView, guesses: Sequence[Branch]) -> Candidates:
        candidates = Candidates(self.name)
        for branch in guesses:
            candidates.add(branch, self._probability, view.request_id)
        return candidates

    def _probability(self, request_id: int, source: str, depth: int, claim: float | None) -> float:
        weight = self._config.weights.get(source, 1.0)
        return weight * self._estimates.probability(request_id, source, depth, claim)

    def _in_order(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """With ``k`` parts, every part still to come is sure of ``budget // (2 * k)`` nodes; an earlier one may take
        everything else, and what it leaves passes on."""
        drafts: list[list[Branch]] = [[] for _ in views]
        counters = [NodeCounter() for _ in views]
        n_parts = len(self._parts)
        for index, part in enumerate(self._parts):
            n_later = n_parts - index - 1
            shares = [
                min(
                    budget - counter.n_nodes - n_later * (budget // (2 * n_parts)),
                    self._config.limits.get(part.name, budget),
                )
                for budget, counter in zip(budgets, counters, strict=True)
            ]
            for draft, counter, branches in zip(drafts, counters, part.propose_batch(views, shares), strict=True):
                for branch in branches:
                    counter.add_branch(branch)
                draft += branches
        return drafts
