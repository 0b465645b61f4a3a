"""GOOSE (Jin, Nguyen, Inoue 2026, arXiv 2604.02047): a copied chain, with the target's earlier successors as branches.

The tokens after the latest match of the last 5, 4 or 3 tokens are one deep chain, the *spine*. Successors of the last
two tokens, or else of the last one, hang at the root and at the spine, and grow breadth first (Algorithm 1).

The spine's share of the nodes follows the recent acceptance of spines. Where matches of several lengths agree, it gets
more and is continued by further matches (section 4.3). Our formula of the agreement is the share of match lengths that
are followed by the spine's first token, times the spine's length over ``long_spine``, at most 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import ROOT, IntArray
from speculators.method import Method
from speculators.ngrams.occurrences import Occurrences
from speculators.peers.scored_contexts import Context, RecentRows, scored_contexts
from speculators.per_request import PerRequest
from speculators.settings import Settings, setting
from speculators.tenant_state import TenantState

SuccessorRow = tuple[list[int], list[float]]  # ids, best first, and their probabilities
EXTEND = 0.6  # agreement above which a spine is continued by further matches


@dataclass(frozen=True, slots=True)
class GooseConfig(Settings):
    """GOOSE settings; the defaults are the published ones (Table 5)."""

    nodes: int = setting(59, "nodes per step; the published 60 count the root", at_least=1)
    most_nodes: int = setting(99, "nodes per step where matches agree", at_least=1)
    ngrams: tuple[int, ...] = setting((5, 4, 3), "tokens of the matches that are tried, longest first")
    spine: int = setting(20, "tokens copied after one match", at_least=1)
    long_spine: int = setting(8, "tokens of a spine that can have full agreement", at_least=1)
    top_k: int = setting(10, "successors kept per context", at_least=1)
    depth: int = setting(6, "depth at which branches end", at_least=1)
    least: float = setting(0.01, "lowest probability of a successor that is drafted", at_least=0, at_most=1)
    spine_branches: float = setting(0.5, "share of branch nodes at the spine, not the root", at_least=0, at_most=1)
    smoothing: float = setting(0.3, "weight of the last step in the spine's acceptance", at_least=0, at_most=1)
    ratios: tuple[float, float, float] = setting(
        (0.15, 0.30, 0.50), "the spine's share of the nodes at an acceptance below 0.2, below 0.4, and above"
    )
    use_prompt: bool = setting(True, "learn from the prompt's logits")
    shared: bool = setting(False, "one table of successors per scope instead of one per request")
    max_rows: int = setting(65536, "contexts kept; the oldest are dropped", at_least=1)

    def check(self) -> None:
        if not self.ngrams or list(self.ngrams) != sorted(set(self.ngrams), reverse=True) or self.ngrams[-1] < 1:
            raise ConfigError(f"ngrams is {self.ngrams}; it must descend, with values of at least 1")
        if not all(0.0 <= ratio <= 1.0 for ratio in self.ratios):
            raise ConfigError(f"ratios is {self.ratios}; its values must be 0 to 1")


@dataclass(slots=True)
class GooseState:
    """State of one request."""

    rows: RecentRows[SuccessorRow]
    occurrences: Occurrences = field(default_factory=Occurrences)
    spine: list[int] = field(default_factory=list)  # of the current step
    accepted: float = 0.5  # share of a spine that is accepted, smoothed


class Goose(PerRequest[GooseState]):
    """The published method."""

    name = "goose"

    def __init__(self, config: GooseConfig | None = None) -> None:
        super().__init__()
        self._config = config or GooseConfig()
        k = self._config.top_k
        self.needs = Needs(node_top_k=k, prompt_top_k=k if self._config.use_prompt else 0, top_logprobs=True)
        self._shared: TenantState[RecentRows[SuccessorRow]] = TenantState()

    def new_state(self, view: RequestView) -> GooseState:
        rows = RecentRows[SuccessorRow](self._config.max_rows)
        return GooseState(self._shared.of(view.request.scope, lambda: rows) if self._config.shared else rows)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return one tree: the spine, then branches (Algorithm 1)."""
        state, config, context = self.states[view.request_id], self._config, view.context.view
        spine, agreement = self._spine(state.occurrences, context)
        n_nodes = min(budget, config.nodes + int(agreement * max(config.most_nodes - config.nodes, 0)))
        ratio = config.ratios[0 if state.accepted < 0.2 else 1 if state.accepted < 0.4 else 2]
        state.spine = spine[: int(n_nodes * (ratio + agreement * (1.0 - ratio)))]
        tokens, parents = self._tree(state, tuple(context[-2:].tolist()), n_nodes, spine[:1])
        return [Branch(tokens, self.name, parents)] if tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Replace the successors of all scored contexts, and update the acceptance of spines."""
        state, config = self.states[view.request_id], self._config
        for context, ids, p in scored_contexts(view, outcome, 2, config.top_k):
            state.rows.put(context[-1:], (ids, p))
            state.rows.put(context, (ids, p))
        if state.spine and len(outcome.tree):
            pairs = zip(state.spine, outcome.tokens, strict=False)
            n_right = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
            state.accepted += config.smoothing * (n_right / len(state.spine) - state.accepted)
        state.spine = []

    def _spine(self, occurrences: Occurrences, context: IntArray) -> tuple[list[int], float]:
        """Return what followed the longest match, continued by further matches, and the agreement of the first."""
        before = context[-self._config.ngrams[0] :].tolist()
        spine, agreement = more, last_agreement = self._copy(occurrences, context, before)
        limit = int(self._config.most_nodes * agreement)
        while agreement > EXTEND and more and len(spine) < limit and (last_agreement >= 1.0 or agreement < 1.0):
            more, last_agreement = self._copy(occurrences, context, before + spine)
            spine = spine + more
        return spine, agreement

    def _copy(self, occurrences: Occurrences, context: IntArray, text: list[int]) -> tuple[list[int], float]:
        """Return what followed the longest match of the end of ``text``, and the agreement of all match lengths."""
        config = self._config
        tail = np.array(text[-config.ngrams[0] :], np.int32)
        lengths, starts = occurrences.matches(context, tail, config.ngrams[0])
        latest = [int(starts[hits[0]]) for n in config.ngrams if len(hits := np.flatnonzero(lengths >= n))]
        if not latest:
            return [], 0.0
        spine = context[latest[0] : latest[0] + config.spine].tolist()
        agreeing = sum(int(context[start]) == spine[0] for start in latest) / len(config.ngrams)
        return spine, agreeing * min(1.0, len(spine) / config.long_spine)

    def _tree(self, state: GooseState, last: Context, n_nodes: int, copied: list[int]) -> tuple[list[int], list[int]]:
        """Return tokens and parents of the spine and its branches; ``copied`` has the first token after the match."""
        config, spine = self._config, state.spine
        tokens, parents = list(spine), list(range(ROOT, len(spine) - 1))
        contexts = [last, *itertools.pairwise((last[-1], *spine))]  # of the root, then of every node
        depths = list(range(len(spine) + 1))
        growing: list[tuple[int, float]] = []  # nodes that branches may continue, and their probabilities

        def add_children(node: int, n: int, omitted: Sequence[int] = ()) -> None:
            context = contexts[node + 1]
            ids, p = state.rows.get(context) or state.rows.get(context[-1:]) or ([], [])
            end = min(len(tokens) + n, n_nodes)
            for token, probability in zip(ids, p, strict=True):
                if len(tokens) >= end or probability < config.least:
                    break
                if token not in omitted:
                    if depths[node + 1] + 1 < config.depth:
                        growing.append((len(tokens), probability))
                    tokens.append(token)
                    parents.append(node)
                    depths.append(depths[node + 1] + 1)
                    contexts.append((context[-1], token))

        n_branches = n_nodes - len(spine)
        left_at_spine = max(1, int(n_branches * config.spine_branches)) if spine else 0
        add_children(ROOT, n_branches - left_at_spine, copied)
        harmonic = sum(1.0 / place for place in range(1, len(spine) + 1))
        for node in range(len(spine)):
            share = min(left_at_spine, max(1, int(config.spine_branches * n_branches / (node + 1) / harmonic)))
            left_at_spine -= share
            add_children(node, share, spine[node + 1 : node + 2])
        for node, probability in growing:  # the calls append to it
            if len(tokens) >= n_nodes:
                break
            most = max(1, config.top_k // depths[node + 1])
            add_children(node, min(most, ceil((n_nodes - len(tokens)) * probability)))
        return tokens, parents


GOOSE = Method(
    name="goose",
    factory=lambda settings, context: Goose(settings),
    description="a copied chain, with the target's earlier successors as branches",
    source="arXiv 2604.02047",
    settings=GooseConfig,
)
