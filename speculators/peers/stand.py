"""STAND (Song et al. 2025, arXiv 2506.04708): n-grams with the target's probabilities, drafted by drawing.

Behind contexts of 3 to 1 tokens the target's ten best ids are kept with their probabilities; what it says behind the
same context again is averaged in, so that the row of a context seen ``k`` times weighs it ``k / (k + 1)`` against the
newest (section 3.1). A draft is a fixed tree. The children of a node are drawn from the row of the longest known
context without replacement: the ids with the highest ``log p / T`` plus Gumbel noise (Gumbel top-k, 3.2), in greedy
decoding without noise. It was made for many reasoning traces of one question, whose rows are shared.

The noise is the drafter's own, as published, or by option the noise that the target will draw with (coupled sampling;
Daliri et al. 2024): then the first child is the token that the target would draw if the row were its distribution.
The published tree of 80 nodes was found by search on the authors' data (3.3) and is not printed; ours takes the ranks
that are right most often when ranks are independent (``speculators.successors.token_recycling.rank_tree``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Literal

import numpy as np

from engine.compiled.keys import mix64
from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.sampling.keys import request_key
from engine.tree import ROOT
from speculators.method import Method
from speculators.peers.scored_contexts import Context, RecentRows, scored_contexts
from speculators.successors.draws import exponential
from speculators.successors.token_recycling import rank_tree
from speculators.tenant_state import TenantState

Row = tuple[int, dict[int, float]]  # times seen; id -> probability
_shape = lru_cache(maxsize=64)(rank_tree)


@dataclass(frozen=True, slots=True)
class StandConfig:
    """STAND settings; the defaults are the published ones.

    Raises:
        ConfigError: a value is out of range.
    """

    nodes: int = 80  # drafted per step
    depth: int = 13  # tokens
    order: int = 3  # tokens of the longest context: 4-grams
    top_k: int = 10  # ids kept per context
    noise: Literal["own", "target"] = "own"  # with which candidates are drawn; target: coupled sampling's
    use_prompt: bool = True  # learn from the prompt's logits
    shared: bool = False  # one table per scope, instead of one per request
    max_rows: int = 65536  # contexts kept; the oldest gives way

    def __post_init__(self) -> None:
        for name in ("nodes", "depth", "order", "top_k", "max_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"stand: {name} must be at least 1, got {getattr(self, name)}")
        if self.noise not in ("own", "target"):
            raise ConfigError(f"stand: noise must be own or target, got {self.noise!r}")


@dataclass(slots=True)
class _State:
    """One request's part."""

    rows: RecentRows[Row]
    heat: float  # temperature; 0.0 greedy
    key: np.uint64 | None  # of the target's noise; None: the drafter's own
    random: np.random.Generator


def averaged(row: Row | None, said: dict[int, float], top_k: int) -> Row:
    """``row`` with what the target ``said`` once more, its ``top_k`` best ids, summing to 1."""
    if row is None:
        return 1, said
    k, known = row
    both = {token: (k * known.get(token, 0.0) + said.get(token, 0.0)) / (k + 1) for token in (*known, *said)}
    best = sorted(both.items(), key=lambda item: -item[1])[:top_k]
    total = sum(p for _, p in best)
    return k + 1, {token: p / total for token, p in best}


class Stand:
    """The published method."""

    name = "stand"

    def __init__(self, config: StandConfig | None = None) -> None:
        self._config = config or StandConfig()
        k = self._config.top_k
        self.needs = Needs(node_top_k=k, prompt_top_k=k if self._config.use_prompt else 0, top_logprobs=True)
        self._states: dict[int, _State] = {}
        self._shared: TenantState[RecentRows[Row]] = TenantState()

    def begin(self, view: RequestView) -> None:
        """An empty table, or the scope's."""
        params = view.request.params

        def make() -> RecentRows[Row]:
            return RecentRows(self._config.max_rows)

        known = self._config.noise == "target" and params.verification == "coupled"
        self._states[view.request_id] = _State(
            self._shared.of(view.request.scope, make) if self._config.shared else make(),
            0.0 if params.is_greedy else params.temperature,
            np.uint64(request_key(params.seed, params.choice)) if known else None,
            np.random.default_rng(params.seed % 2**64),
        )

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """The tree of ranks, where contexts are known."""
        state, n_nodes = self._states[view.request_id], min(budget, self._config.nodes)
        shape = _shape(n_nodes, self._config.depth, self._config.top_k)
        length = len(view.context)
        tails: list[Context] = [tuple(view.context.view[-self._config.order :].tolist())]  # of the root, then of nodes
        drawn: list[list[tuple[int, float]]] = [self._draw(state, tails[0], length)]
        depths = [0]
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        placed: dict[int, int] = {ROOT: ROOT}  # node of the shape -> node of the branch
        for node, (parent, rank) in enumerate(shape):
            above = placed.get(parent)
            if above is None or rank >= len(drawn[above + 1]):
                continue
            token, p = drawn[above + 1][rank]
            placed[node] = len(tokens)
            tokens.append(token)
            parents.append(above)
            scores.append(p)
            depths.append(depths[above + 1] + 1)
            tails.append((*tails[above + 1], token)[-self._config.order :])
            drawn.append(self._draw(state, tails[-1], length + depths[-1]))
        return [Branch(tokens, self.name, parents, scores=scores)] if tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Average what the target said into the rows of all orders."""
        rows, config = self._states[view.request_id].rows, self._config
        for context, ids, p in scored_contexts(view, outcome, config.order, config.top_k):
            said = dict(zip(ids, p, strict=True))
            for start in range(len(context)):
                rows.put(context[start:], averaged(rows.get(context[start:]), said, config.top_k))

    def end(self, view: RequestView) -> None:
        """Drop the request's state; a shared table stays."""
        self._states.pop(view.request_id, None)

    @staticmethod
    def _draw(state: _State, tail: Context, position: int) -> list[tuple[int, float]]:
        """Candidates behind ``tail``, in the order they were drawn, with their probability."""
        row = next((state.rows[tail[i:]] for i in range(len(tail)) if tail[i:] in state.rows), None)
        if row is None:
            return []
        candidates = [(token, p) for token, p in row[1].items() if p > 0.0]
        if state.heat == 0.0:
            return sorted(candidates, key=lambda item: -item[1])
        if state.key is None:
            waits = state.random.standard_exponential(len(candidates)).tolist()
        else:
            key = np.uint64(mix64(state.key ^ np.uint64(position)))
            waits = [exponential(key, token) for token, _ in candidates]
        # The largest log p / T + Gumbel is the smallest exponential wait over p^(1/T).
        order = sorted(
            range(len(candidates)), key=lambda i: log(max(waits[i], 1e-300)) - log(candidates[i][1]) / state.heat
        )
        return [candidates[i] for i in order]


STAND = Method(
    name="stand",
    factory=lambda settings, context: Stand(settings),
    description="n-grams with the target's probabilities, drafted by drawing",
    settings=StandConfig,
)
