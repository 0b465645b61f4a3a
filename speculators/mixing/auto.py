"""``auto``: the sources propose, a cost model decides how much of it is worth a step.

Every node has an estimated probability of being accepted (its path probability, calibrated by what came true). Adding
nodes in that order adds expected tokens; it also adds time, by the step times measured on this target
(``engine.step_cost``). Over all requests that draft together, the node count is chosen that maximises

    expected tokens per second = (B + sum of path probabilities) / (step(B, B + nodes) + drafting)

where ``B`` counts the requests (each commits one token anyway). With nothing to gain nothing is drafted, and a request
that gains nothing is not even asked for a while: twice as long after every failure, so that unpredictable text
costs nearly nothing. On a GPU at batch 1 nodes are nearly free and trees grow to the limit; on a CPU, or in a full
batch, only likely nodes pay. docs/methods/auto.md shows the curves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Decision, Draft, Needs, Outcome, RequestView, Speculator
from engine.step_cost import StepCosts
from engine.tree import ROOT
from speculators.mixing.calibration import DEPTHS, DepthCalibration, claims_and_hits
from speculators.mixing.candidates import Candidates
from speculators.mixing.estimates import FIRST_CLAIM
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.tenant_state import TenantState

SMOOTHING = 0.2  # of the newest measurement of what drafting costs
FIRST_PAUSE = 0.25  # steps; it doubles with every failure, so that the first two are forgiven
FIRST_DRAFTING = 2e-4  # seconds per request and step, before any was measured
SURPRISE = 4.0  # times the usual drafting time that count at most: longer ones are pauses of the process, or compiling

REST = Decision("off", "rest", False)


@dataclass(frozen=True, slots=True)
class AutoConfig:
    """Settings of ``auto``.

    Raises:
        ConfigError: a value is out of range.
    """

    sources: tuple[str, ...] = ()  # methods to choose from; by default suffix and token-recycling, and what is given
    retrieval: bool = True  # whether texts to look up are among what is given
    longest_pause: int = 4  # steps without a draft after repeated failures, or more where asking is dear:
    overhead: float = 0.02  # share of a request's step time that asking in vain may take, up to 32 steps' pause
    reserve: int = 8  # nodes asked for beyond what paid lately
    margin: float = 0.01  # a draft must promise this much more tokens per second than none

    def __post_init__(self) -> None:
        if self.longest_pause < 1:
            raise ConfigError(f"auto: longest_pause must be at least 1, got {self.longest_pause}")
        if self.reserve < 1:
            raise ConfigError(f"auto: reserve must be at least 1, got {self.reserve}")
        if not 0.0 < self.overhead <= 1.0:
            raise ConfigError(f"auto: overhead must lie in (0, 1], got {self.overhead}")
        if not 0.0 <= self.margin < 1.0:
            raise ConfigError(f"auto: margin must lie in [0, 1), got {self.margin}")
        if "auto" in self.sources:
            raise ConfigError("auto: sources cannot contain auto")


@dataclass(slots=True)
class _RequestStatistics:
    """Statistics of one request."""

    shared: DepthCalibration  # of its scope
    calibration: DepthCalibration = field(default_factory=DepthCalibration)
    pause: int = 0  # steps until the sources are asked again
    next_pause: float = FIRST_PAUSE  # after the next failure
    claims: list[float] = field(default_factory=list)  # of the nodes of its current tree, in order
    lately: float = 64.0  # nodes that paid, following rises at once and falls slowly


@dataclass(slots=True)
class _Draft:
    """One request's candidates, the most probable first."""

    branch: Branch
    reach: list[float]  # calibrated path probabilities, not increasing
    order: list[int]  # the candidates by ``reach``


class Auto:
    """Sources in one tree, as far as they pay.

    Branches that were sampled from a distribution of their own, and probes, are passed on untouched: choosing among
    them by score would spoil what they are for.

    Args:
        parts: the sources.
        costs: measured step times; without them nodes count as free up to the request's limit.
        config: settings.
    """

    name = "auto"

    def __init__(
        self, parts: Sequence[Speculator], costs: StepCosts | None = None, config: AutoConfig | None = None
    ) -> None:
        assert parts, "nothing to choose from"
        self._parts = [FaultIsolated(part) for part in parts]
        self.needs = reduce(Needs.merge, (part.needs for part in parts), Needs())
        self._costs = costs
        self._config = config or AutoConfig()
        self._statistics: dict[int, _RequestStatistics] = {}
        self._shared: TenantState[DepthCalibration] = TenantState()
        self._drafting = FIRST_DRAFTING
        self._looked_up: dict[int, list[float]] = {}  # batch -> seconds by nodes

    def begin(self, view: RequestView) -> None:
        """Forwarded to all sources."""
        self._statistics[view.request_id] = _RequestStatistics(self._shared.of(view.request.scope, DepthCalibration))
        for part in self._parts:
            part.begin(view)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """``propose_batch`` of one."""
        return self.propose_batch((view,), (budget,))[0]

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        """The nodes that pay, over all requests together."""
        began = time.perf_counter()
        drafts: list[list[Branch]] = [[] for _ in views]
        asked = [i for i, view in enumerate(views) if budgets[i] > 0 and self._is_due(view)]
        if not asked:
            return self._decided(views, drafts)
        every = self._gather([views[i] for i in asked], [self._nodes_to_ask(views[i], budgets[i]) for i in asked])
        ranked: dict[int, _Draft] = {}
        for i, branches in zip(asked, every, strict=True):
            if any(branch.q is not None or branch.probe for branch in branches):
                drafts[i] = branches
            else:
                ranked[i] = self._rank(views[i], branches, budgets[i])
        counts = self.share_out([draft.reach for draft in ranked.values()], len(views))
        for (i, draft), count in zip(ranked.items(), counts, strict=True):
            drafts[i] = self._take(views[i], draft, count, len(views))
        seconds = (time.perf_counter() - began) / len(asked)
        self._drafting += SMOOTHING * (min(seconds, SURPRISE * self._drafting) - self._drafting)
        return self._decided(views, drafts)

    def _decided(self, views: Sequence[RequestView], drafts: Sequence[list[Branch]]) -> list[list[Branch]]:
        return [
            Draft(branches, REST if not branches and self._rests(view) else None)
            for view, branches in zip(views, drafts, strict=True)
        ]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Forwarded to all sources; what was claimed is held against what came true."""
        stats, tree = self._statistics[view.request_id], outcome.tree
        if stats.claims and len(tree) == len(stats.claims):
            claimed, hits = claims_and_hits(outcome, stats.claims)
            for calibration in (stats.shared, stats.calibration):
                calibration.add(claimed, hits)
        stats.claims = []
        # A paused request is not asked next: a source that can catch up later skips this outcome.
        rests = stats.pause > 0 and outcome.prompt_top_ids is None
        for part in self._parts:
            if not (rests and part.catches_up):
                part.observe(view, outcome)

    def _rests(self, view: RequestView) -> bool:
        """Whether the next outcome of a request will be skipped by all sources that want to be told of nodes."""
        told = (part for part in self._parts if part.needs.node_top_k or part.needs.probe_top_k)
        return self._statistics[view.request_id].pause > 0 and all(part.catches_up for part in told)

    def end(self, view: RequestView) -> None:
        """Forwarded to all sources."""
        self._statistics.pop(view.request_id, None)
        for part in self._parts:
            part.end(view)

    def share_out(self, reaches: Sequence[Sequence[float]], batch: int) -> list[int]:
        """How many nodes each draft may keep so that all requests together get the most tokens per second.

        Args:
            reaches: per draft the path probabilities of its candidates, not increasing.
            batch: requests that take part in the step, those without a draft too.
        """
        if self._costs is None:
            return [len(reach) for reach in reaches]
        p = [value for reach in reaches for value in reach]
        order = list(range(len(p))) if len(reaches) == 1 else sorted(range(len(p)), key=lambda i: -p[i])
        seconds, drafting = self._seconds(batch, len(p)), self._drafting * len(reaches)
        tokens, best = float(batch), 0
        best_rate = tokens / seconds[0] * (1.0 + self._config.margin)
        for n, i in enumerate(order, start=1):
            tokens += p[i]
            rate = tokens / (seconds[n] + drafting)
            if rate > best_rate:
                best, best_rate = n, rate
        owners = [owner for owner, reach in enumerate(reaches) for _ in reach]
        counts = [0] * len(reaches)
        for i in order[:best]:
            counts[owners[i]] += 1
        return counts

    def _seconds(self, batch: int, n_nodes: int) -> list[float]:
        """Of a step of ``batch`` sequences with 0 to ``n_nodes`` nodes in all."""
        assert self._costs is not None
        known = self._looked_up.get(batch, [])
        if len(known) <= n_nodes:
            known = self._costs.seconds(batch, np.arange(batch, batch + 2 * n_nodes + 1)).tolist()
            self._looked_up[batch] = known
        return known

    def _is_due(self, view: RequestView) -> bool:
        """Whether it is worth asking for a draft again."""
        stats = self._statistics[view.request_id]
        if stats.pause == 0:
            return True
        stats.pause -= 1
        return False

    def _nodes_to_ask(self, view: RequestView, budget: int) -> int:
        """Nodes to ask for: finding candidates takes time too, most of it for unlikely ones."""
        return min(budget, int(2.0 * self._statistics[view.request_id].lately) + self._config.reserve)

    def _gather(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        every: list[list[Branch]] = [[] for _ in views]
        for part in self._parts:
            for branches, more in zip(every, part.propose_batch(views, budgets), strict=True):
                branches += more
        return every

    def _rank(self, view: RequestView, branches: Sequence[Branch], budget: int) -> _Draft:
        """All candidates of a request by calibrated path probability; a parent always comes before its children."""
        branch = self._merged(branches)
        if branch is None:
            return _Draft(Branch([], self.name), [], [])
        assert branch.parents is not None
        assert branch.scores is not None
        stats = self._statistics[view.request_id]
        factors = stats.calibration.factors(stats.shared)
        reach: list[float] = []
        depths: list[int] = []
        for parent, score in zip(branch.parents, branch.scores, strict=True):
            depth = 0 if parent == ROOT else depths[parent] + 1
            above = 1.0 if parent == ROOT else reach[parent]
            depths.append(depth)
            reach.append(above * min(score * factors[min(depth, DEPTHS - 1)], 1.0))
        order = sorted(range(len(reach)), key=lambda node: -reach[node])[:budget]
        return _Draft(branch, [reach[node] for node in order], order)

    def _merged(self, branches: Sequence[Branch]) -> Branch | None:
        """One branch with estimates; None if no source proposed anything."""
        if not branches:
            return None
        only = branches[0]
        if len(branches) == 1 and only.parents is not None and only.scores is not None:
            return only
        candidates = Candidates(self.name)
        for branch in branches:
            candidates.add(branch, _claim_or_guess, 0)
        return candidates.best(len(candidates.tokens))

    def _longest_pause(self, batch: int) -> float:
        """Steps after which asking in vain once more costs no more than the overhead allowed."""
        if self._costs is None:
            return self._config.longest_pause
        per_request = self._seconds(batch, 0)[0] / batch
        return max(self._config.longest_pause, min(self._drafting / (self._config.overhead * per_request), 32.0))

    def _take(self, view: RequestView, draft: _Draft, count: int, batch: int) -> list[Branch]:
        """The first ``count`` candidates as a branch; without any, the request's drafting pauses."""
        stats = self._statistics[view.request_id]
        stats.lately = max(float(count), stats.lately + 0.25 * (count - stats.lately))
        if count == 0:
            if draft.order:  # refused: unless what speaks against the claims ages, they can never prove right again
                for calibration in (stats.shared, stats.calibration):
                    calibration.fade(1 + int(stats.next_pause))
            stats.pause = int(stats.next_pause)
            stats.next_pause = min(2 * stats.next_pause, self._longest_pause(batch))
            return []
        stats.next_pause = FIRST_PAUSE
        branch, kept = draft.branch, draft.order[:count]
        assert branch.parents is not None
        assert branch.scores is not None
        place = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
        stats.claims = [branch.scores[node] for node in kept]
        proposers = branch.proposers
        return [
            Branch(
                [branch.tokens[node] for node in kept],
                branch.source,
                [place[branch.parents[node]] for node in kept],
                scores=stats.claims,
                proposers=None if proposers is None else [proposers[node] for node in kept],
            )
        ]


def _claim_or_guess(request_id: int, source: str, depth: int, claim: float | None) -> float:
    return FIRST_CLAIM if claim is None else claim
