"""GOOSE (Jin, Nguyen, Inoue 2026, arXiv 2604.02047): a spine of copied text, with the target's leftovers as branches.

Tokens copied from the context are right several times as often as tokens that the target once ranked high behind the
same words, so the tree is uneven (section 4.1, Algorithm 1): what followed the latest match of the last 5, 4 or 3
tokens is one deep chain, the *spine*; alternatives from a table of successors (Token Recycling's, by the last two
tokens where known, else by the last) hang at the root and at every node of the spine, fewer the deeper, and grow
breadth first. The spine's share of the nodes follows how far spines were accepted lately; where matches of several
lengths agree on what follows, it gets more, up to everything, and is continued by further matches (section 4.3).

Agreement as a number is our reading: the share of the n-gram lengths whose latest match goes on with the spine's first
token, times the spine's length over ``long_spine``, at most 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import ROOT, IntArray
from speculators.method import Method
from speculators.ngrams.occurrences import Occurrences
from speculators.peers.scored_contexts import RecentRows, scored_contexts
from speculators.tenant_state import TenantState

Row = tuple[list[int], list[float]]  # ids, best first, and their probabilities
EXTEND = 0.6  # agreement above which a spine is continued by further matches


@dataclass(frozen=True, slots=True)
class GooseConfig:
    """GOOSE settings; the defaults are the published ones (Table 5).

    Raises:
        ConfigError: a value is out of range.
    """

    nodes: int = 59  # drafted per step; the published 60 count the root
    most_nodes: int = 99  # where matches agree; the request's own limit holds in any case
    ngrams: tuple[int, ...] = (5, 4, 3)  # lengths of match, tokens, longest first
    spine: int = 20  # tokens copied behind one match
    long_spine: int = 8  # tokens of a spine that counts as sure
    top_k: int = 10  # successors kept per context
    depth: int = 6  # depth at which branches grow no further
    least: float = 0.01  # probability of a successor below which it is not drafted
    spine_branches: float = 0.5  # share of the branches' nodes that hang at the spine, not at the root
    smoothing: float = 0.3  # weight of the last step in the spine's acceptance
    ratios: tuple[float, float, float] = (0.15, 0.30, 0.50)  # spine's share: acceptance below 0.2, below 0.4, else
    use_prompt: bool = True  # learn from the prompt's logits
    shared: bool = False  # one table of successors per scope, instead of one per request
    max_rows: int = 65536  # contexts kept; the oldest gives way

    def __post_init__(self) -> None:
        for name in ("nodes", "most_nodes", "spine", "long_spine", "top_k", "depth", "max_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"goose: {name} must be at least 1, got {getattr(self, name)}")
        for name in ("least", "spine_branches", "smoothing"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"goose: {name} must lie in 0..1, got {getattr(self, name)}")
        if not self.ngrams or list(self.ngrams) != sorted(set(self.ngrams), reverse=True) or self.ngrams[-1] < 1:
            raise ConfigError(f"goose: ngrams must descend and be at least 1, got {self.ngrams}")
        if not all(0.0 <= ratio <= 1.0 for ratio in self.ratios):
            raise ConfigError(f"goose: ratios must lie in 0..1, got {self.ratios}")


@dataclass(slots=True)
class _State:
    """One request's part."""

    rows: RecentRows[Row]
    occurrences: Occurrences = field(default_factory=Occurrences)
    spine: list[int] = field(default_factory=list)  # of the step in flight
    accepted: float = 0.5  # share of a spine that is accepted, smoothed


class Goose:
    """The published method."""

    name = "goose"

    def __init__(self, config: GooseConfig | None = None) -> None:
        self._config = config or GooseConfig()
        k = self._config.top_k
        self.needs = Needs(node_top_k=k, prompt_top_k=k if self._config.use_prompt else 0, top_logprobs=True)
        self._states: dict[int, _State] = {}
        self._shared: TenantState[RecentRows[Row]] = TenantState()

    def begin(self, view: RequestView) -> None:
        """An empty table, or the scope's."""

        def make() -> RecentRows[Row]:
            return RecentRows(self._config.max_rows)

        self._states[view.request_id] = _State(
            self._shared.of(view.request.scope, make) if self._config.shared else make()
        )

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One tree: the spine, then branches (Algorithm 1)."""
        state, config = self._states[view.request_id], self._config
        context = view.context.view
        spine, agreement = self._spine(state.occurrences, context)
        n_nodes = min(budget, config.nodes + int(agreement * max(config.most_nodes - config.nodes, 0)))
        ratio = config.ratios[0 if state.accepted < 0.2 else 1 if state.accepted < 0.4 else 2]
        state.spine = spine[: int(n_nodes * (ratio + agreement * (1.0 - ratio)))]
        tree = _Tree(state.rows, context[-2:].tolist(), state.spine, config)
        tree.branch(spine[0] if spine else None, n_nodes - len(state.spine))
        return [Branch(tree.tokens, self.name, tree.parents)] if tree.tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Overwrite what is known behind every context that was scored; judge the spine."""
        state, config = self._states[view.request_id], self._config
        for context, ids, p in scored_contexts(view, outcome, 2, config.top_k):
            state.rows.put(context[-1:], (ids, p))
            state.rows.put(context, (ids, p))
        if state.spine and len(outcome.tree):
            pairs = enumerate(zip(state.spine, outcome.tokens, strict=False))
            right = next((i for i, (said, true) in pairs if said != true), min(len(state.spine), len(outcome.tokens)))
            state.accepted += config.smoothing * (right / len(state.spine) - state.accepted)
        state.spine = []

    def end(self, view: RequestView) -> None:
        """Drop the request's state; a shared table stays."""
        self._states.pop(view.request_id, None)

    def _spine(self, occurrences: Occurrences, context: IntArray) -> tuple[list[int], float]:
        """What followed the longest match, and the agreement of all; empty and 0.0 if nothing matches."""
        before = context[-self._config.ngrams[0] :].tolist()
        spine, agreement = more, sure = self._copy(occurrences, context, before)
        limit = int(self._config.most_nodes * agreement)
        while agreement > EXTEND and more and len(spine) < limit and (sure >= 1.0 or agreement < 1.0):
            more, sure = self._copy(occurrences, context, before + spine)
            spine = spine + more
        return spine, agreement

    def _copy(self, occurrences: Occurrences, context: IntArray, text: list[int]) -> tuple[list[int], float]:
        """What followed the longest of the latest matches of the end of ``text``, and the agreement of all."""
        config = self._config
        tail = np.array(text[-config.ngrams[0] :], np.int32)
        lengths, starts = occurrences.matches(context, tail, config.ngrams[0])
        found = [int(starts[hits[0]]) for n in config.ngrams if len(hits := np.flatnonzero(lengths >= n))]
        if not found:
            return [], 0.0
        spine = context[found[0] : found[0] + config.spine].tolist()
        agree = sum(context[start] == spine[0] for start in found) / len(config.ngrams)
        return spine, float(agree) * min(1.0, len(spine) / config.long_spine)


class _Tree:
    """A spine and the branches that hang at it.

    Args:
        rows: what the target said behind one and two tokens.
        before: the last two tokens of the context; the last one is the root.
        spine: tokens of the spine.
        config: settings.
    """

    def __init__(self, rows: RecentRows[Row], before: list[int], spine: Sequence[int], config: GooseConfig) -> None:
        self._rows, self._config = rows, config
        self._contexts = [tuple(before)]  # of the root, then of every node
        self._depths = [0]
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._left = 0
        self._open: deque[tuple[int, float]] = deque()  # nodes of branches that may grow, with their probability
        for token in spine:
            self._add(token, len(self.tokens) - 1)

    def branch(self, first: int | None, n_nodes: int) -> None:
        """Add ``n_nodes`` nodes of branches; ``first`` is what the match says next, which needs no branch."""
        n_spine = len(self.tokens)
        at_spine = max(1, int(n_nodes * self._config.spine_branches)) if n_spine else 0
        self._left = n_nodes
        self._hang(ROOT, first, n_nodes - at_spine)
        harmonic = sum(1.0 / place for place in range(1, n_spine + 1))
        for node in range(n_spine):
            share = min(at_spine, max(1, int(self._config.spine_branches * n_nodes / (node + 1) / harmonic)))
            at_spine -= share
            self._hang(node, self.tokens[node + 1] if node + 1 < n_spine else None, share)
        while self._open and self._left > 0:
            node, p = self._open.popleft()
            most = max(1, self._config.top_k // self._depths[node + 1])
            self._hang(node, None, min(most, ceil(self._left * p)))

    def _hang(self, node: int, but: int | None, n: int) -> None:
        """The ``n`` best successors of a node, ``but`` left out."""
        context = self._contexts[node + 1]
        ids, p = self._rows.get(context) or self._rows.get(context[-1:]) or ([], [])
        for token, chance in zip(ids, p, strict=True):
            if n <= 0 or self._left <= 0 or chance < self._config.least:
                return
            if token == but:
                continue
            self._add(token, node)
            n -= 1
            self._left -= 1
            if self._depths[-1] < self._config.depth:
                self._open.append((len(self.tokens) - 1, chance))

    def _add(self, token: int, parent: int) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self._contexts.append((self._contexts[parent + 1][-1], token))
        self._depths.append(self._depths[parent + 1] + 1)


GOOSE = Method(
    name="goose",
    factory=lambda settings, context: Goose(settings),
    description="a copied spine with branches of the target's earlier successors",
    settings=GooseConfig,
)
