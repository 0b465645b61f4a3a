"""GOOSE (Jin, Nguyen, Inoue 2026, arXiv 2604.02047): a copied chain, with the target's earlier successors as branches.

Copied tokens are right several times as often as tokens that the target ranked high after the same words, so the tree
is uneven (section 4.1, Algorithm 1). The tokens after the latest match of the last 5, 4 or 3 tokens are one deep chain,
the *spine*. Alternatives come from a table of successors by the last two tokens, or else by the last one. They hang at
the root and at the spine, fewer at deeper nodes, and grow breadth first.

The spine's share of the nodes follows the recent acceptance of spines. Where matches of several lengths agree on the
next token, the spine gets more, up to everything, and is continued by further matches (section 4.3). The paper gives no
formula for the agreement. Ours is the share of match lengths that are followed by the spine's first token, times the
spine's length over ``long_spine``, at most 1.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from math import ceil

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import ROOT, IntArray
from speculators.method import Method
from speculators.ngrams.occurrences import Occurrences
from speculators.peers.scored_contexts import RecentRows, scored_contexts
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
    """What is known for one request."""

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
        make = partial(RecentRows[SuccessorRow], self._config.max_rows)
        return GooseState(self._shared.of(view.request.scope, make) if self._config.shared else make())

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return one tree: the spine, then branches (Algorithm 1)."""
        state, config = self.states[view.request_id], self._config
        context = view.context.view
        spine, agreement = self._spine(state.occurrences, context)
        n_nodes = min(budget, config.nodes + int(agreement * max(config.most_nodes - config.nodes, 0)))
        ratio = config.ratios[0 if state.accepted < 0.2 else 1 if state.accepted < 0.4 else 2]
        state.spine = spine[: int(n_nodes * (ratio + agreement * (1.0 - ratio)))]
        tree = GooseTree(config, state.rows, context[-2:].tolist())
        tree.add_spine(state.spine)
        tree.add_branches(n_nodes - len(state.spine), spine[0] if spine else None)
        return [Branch(tree.tokens, self.name, tree.parents)] if tree.tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Replace the successors of all scored contexts, and update the acceptance of spines."""
        state, config = self.states[view.request_id], self._config
        for context, ids, p in scored_contexts(view, outcome, 2, config.top_k):
            state.rows.put(context[-1:], (ids, p))
            state.rows.put(context, (ids, p))
        if state.spine and len(outcome.tree):
            n_right = 0
            for drafted, token in zip(state.spine, outcome.tokens, strict=False):
                if drafted != token:
                    break
                n_right += 1
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


class GooseTree:
    """A tree of one spine and branches.

    Args:
        rows: successors by one and two tokens.
        last: the last two tokens of the context; the last one is the root.
    """

    def __init__(self, config: GooseConfig, rows: RecentRows[SuccessorRow], last: list[int]) -> None:
        self._config, self._rows = config, rows
        self._contexts = [tuple(last)]  # of the root, then of every node
        self._depths = [0]
        self.tokens: list[int] = []
        self.parents: list[int] = []

    def add_spine(self, tokens: list[int]) -> None:
        for token in tokens:
            self._add(token, len(self.tokens) - 1)

    def add_branches(self, n_nodes: int, copied: int | None) -> None:
        """Add ``n_nodes`` nodes at the root and at the spine; ``copied`` follows the root by the match."""
        config, n_spine = self._config, len(self.tokens)
        limit = n_spine + n_nodes
        left_at_spine = max(1, int(n_nodes * config.spine_branches)) if n_spine else 0
        growing = deque(self._add_children(ROOT, n_nodes - left_at_spine, limit, copied))
        harmonic = sum(1.0 / place for place in range(1, n_spine + 1))
        for node in range(n_spine):
            share = min(left_at_spine, max(1, int(config.spine_branches * n_nodes / (node + 1) / harmonic)))
            left_at_spine -= share
            following = self.tokens[node + 1] if node + 1 < n_spine else None
            growing.extend(self._add_children(node, share, limit, following))
        while growing and len(self.tokens) < limit:
            node, p = growing.popleft()
            most = max(1, config.top_k // self._depths[node + 1])
            growing.extend(self._add_children(node, min(most, ceil((limit - len(self.tokens)) * p)), limit))

    def _add_children(self, node: int, n: int, limit: int, omitted: int | None = None) -> list[tuple[int, float]]:
        """Add the ``n`` best successors of a node but one; return those that can grow and their probabilities."""
        context = self._contexts[node + 1]
        ids, p = self._rows.get(context) or self._rows.get(context[-1:]) or ([], [])
        end = min(len(self.tokens) + n, limit)
        growing: list[tuple[int, float]] = []
        for token, probability in zip(ids, p, strict=True):
            if len(self.tokens) >= end or probability < self._config.least:
                break
            if token != omitted:
                self._add(token, node)
                if self._depths[-1] < self._config.depth:
                    growing.append((len(self.tokens) - 1, probability))
        return growing

    def _add(self, token: int, parent: int) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self._contexts.append((self._contexts[parent + 1][-1], token))
        self._depths.append(self._depths[parent + 1] + 1)


GOOSE = Method(
    name="goose",
    factory=lambda settings, context: Goose(settings),
    description="a copied chain, with the target's earlier successors as branches",
    source="arXiv 2604.02047",
    settings=GooseConfig,
)
