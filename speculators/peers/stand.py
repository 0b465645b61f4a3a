"""STAND (Song et al. 2025, arXiv 2506.04708): n-grams with the target's probabilities, drafted by drawing.

After contexts of 3 to 1 tokens the target's ten best ids are kept with their probabilities, averaged over all answers.
A draft is a fixed tree of ranks. The children of a node are drawn without replacement from the row of its longest known
context (section 3.2): the highest ``log p / T`` plus Gumbel noise, without noise in greedy decoding.

By option the noise is the target's of coupled sampling (Daliri et al. 2024). The published tree of 80 nodes is not
printed; ours is ``rank_tree``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Literal

import numpy as np

from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.sampling.keys import compiled_mix64, request_key
from engine.tree import ROOT
from speculators.method import Method
from speculators.peers.scored_contexts import Context, RecentRows, scored_contexts
from speculators.per_request import PerRequest
from speculators.settings import Settings, setting
from speculators.successors.draws import exponential
from speculators.successors.token_recycling import rank_tree
from speculators.tenant_state import TenantState

AveragedRow = tuple[int, dict[int, float]]  # times seen; id -> probability
_shape = lru_cache(maxsize=64)(rank_tree)


@dataclass(frozen=True, slots=True)
class StandConfig(Settings):
    """STAND settings; the defaults are the published ones."""

    nodes: int = setting(80, "nodes per step", at_least=1)
    depth: int = setting(13, "tokens per path", at_least=1)
    order: int = setting(3, "tokens of the longest context", at_least=1)
    top_k: int = setting(10, "ids kept per context", at_least=1)
    noise: Literal["own", "target"] = setting("own", "noise of the draws; target: that of coupled sampling")
    use_prompt: bool = setting(True, "learn from the prompt's logits")
    shared: bool = setting(False, "one table per scope instead of one per request")
    max_rows: int = setting(65536, "contexts kept; the oldest are dropped", at_least=1)


@dataclass(slots=True)
class StandState:
    """The table of one request, and how it draws."""

    rows: RecentRows[AveragedRow]
    temperature: float  # 0.0: greedy
    key: np.uint64 | None  # of the target's noise; None: the drafter's own noise
    random: np.random.Generator


def averaged(row: AveragedRow | None, answer: dict[int, float], top_k: int) -> AveragedRow:
    """Return ``row`` with one more answer of the target: the ``top_k`` best ids, whose probabilities sum to 1."""
    if row is None:
        return 1, answer
    k, known = row
    both = {token: (k * known.get(token, 0.0) + answer.get(token, 0.0)) / (k + 1) for token in (*known, *answer)}
    best = sorted(both.items(), key=lambda item: -item[1])[:top_k]
    total = sum(p for _, p in best)
    return k + 1, {token: p / total for token, p in best}


class Stand(PerRequest[StandState]):
    """The published method."""

    name = "stand"

    def __init__(self, config: StandConfig | None = None) -> None:
        super().__init__()
        self._config = config or StandConfig()
        k = self._config.top_k
        self.needs = Needs(node_top_k=k, prompt_top_k=k if self._config.use_prompt else 0, top_logprobs=True)
        self._shared: TenantState[RecentRows[AveragedRow]] = TenantState()

    def new_state(self, view: RequestView) -> StandState:
        params = view.request.params
        is_known = self._config.noise == "target" and params.verification == "coupled"
        rows = RecentRows[AveragedRow](self._config.max_rows)
        return StandState(
            self._shared.of(view.request.scope, lambda: rows) if self._config.shared else rows,
            0.0 if params.is_greedy else params.temperature,
            np.uint64(request_key(params.seed, params.choice)) if is_known else None,
            np.random.default_rng(params.seed % 2**64),
        )

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return the tree of ranks as far as contexts are known."""
        state, config, position = self.states[view.request_id], self._config, len(view.context)
        context = tuple(view.context.view[-config.order :].tolist())
        # By node of the fixed tree: node of the draft, context, position and children in the order of their draws.
        known = {ROOT: (ROOT, context, position, self._draw(state, context, position))}
        tokens, parents, scores = list[int](), list[int](), list[float]()
        for fixed, (above, rank) in enumerate(_shape(min(budget, config.nodes), config.depth, config.top_k)):
            parent, context, position, drawn = known.get(above, (ROOT, (), 0, []))
            if rank >= len(drawn):
                continue
            token, p = drawn[rank]
            context, position = (*context, token)[-config.order :], position + 1
            known[fixed] = (len(tokens), context, position, self._draw(state, context, position))
            tokens.append(token)
            parents.append(parent)
            scores.append(p)
        return [Branch(tokens, self.name, parents, scores=scores)] if tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Average the target's answers into the rows of all orders."""
        rows, config = self.states[view.request_id].rows, self._config
        for context, ids, p in scored_contexts(view, outcome, config.order, config.top_k):
            answer = dict(zip(ids, p, strict=True))
            for start in range(len(context)):
                rows.put(context[start:], averaged(rows.get(context[start:]), answer, config.top_k))

    @staticmethod
    def _draw(state: StandState, context: Context, position: int) -> list[tuple[int, float]]:
        """Return the candidates after ``context`` and their probabilities, in the order in which they are drawn."""
        row = next((state.rows[context[i:]] for i in range(len(context)) if context[i:] in state.rows), None)
        if row is None:
            return []
        candidates = [(token, p) for token, p in row[1].items() if p > 0.0]
        if state.temperature == 0.0:
            return sorted(candidates, key=lambda item: -item[1])
        if state.key is None:
            waits = state.random.standard_exponential(len(candidates)).tolist()
        else:
            key = np.uint64(compiled_mix64(state.key ^ np.uint64(position)))
            waits = [exponential(key, token) for token, _ in candidates]
        # The largest log p / T + Gumbel noise is the smallest exponential wait over p^(1/T).
        drawn = zip(waits, candidates, strict=True)
        order = sorted(drawn, key=lambda draw: log(max(draw[0], 1e-300)) - log(draw[1][1]) / state.temperature)
        return [candidate for _, candidate in order]


STAND = Method(
    name="stand",
    factory=lambda settings, context: Stand(settings),
    description="n-grams with the target's probabilities, drafted by drawing",
    source="arXiv 2506.04708",
    settings=StandConfig,
)
