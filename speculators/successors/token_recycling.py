"""Token Recycling as published (Luo et al. 2024, arXiv 2408.08696): the target's unused predictions become drafts.

A matrix holds the latest best successors of every token. Every scored node, accepted or not, overwrites the row of its
token with the ids that the target ranked highest after it. A draft is a tree of fixed shape, read from the matrix from
the last token on. The original shares the matrix between requests; here that is an option, and the prompt's own logits
can fill it before the first draft.

The default, ``mode="mixed"``, is the target's part of ``speculators.successors.speculator``: it uses the same inputs,
but contexts of several lengths, probabilities instead of ranks, and a tree grown by path probability. Either helps on
any text, more so on long ones. The cost is reading back ids after every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from engine.best_first.lists import best_nodes, parents_among
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from engine.top_ids import TopIds
from engine.tree import ROOT, IntArray
from speculators.method import Method, MethodContext
from speculators.per_request import PerRequest
from speculators.settings import Settings, setting
from speculators.successors.config import TARGET, SuccessorConfig
from speculators.successors.speculator import Successors
from speculators.tenant_state import TenantState

Matrix = dict[int, list[int]]  # token -> its successors, best first; oldest row first


@dataclass(frozen=True, slots=True)
class TokenRecyclingConfig(Settings):
    """Settings of token recycling; all but ``mode`` belong to the published algorithm."""

    mode: Literal["mixed", "paper"] = setting("mixed", "mixed: settings are those of successors; paper: as published")
    top_k: int = setting(8, "successors per token", at_least=1)
    max_nodes: int = setting(80, "nodes of a draft", at_least=1)
    depth: int = setting(6, "tokens of the longest path", at_least=1)
    use_prompt: bool = setting(True, "whether the prompt's logits fill the matrix; not in the paper")
    shared: bool = setting(False, "whether all requests of a scope share one matrix, as in the paper")
    max_tokens: int = setting(65536, "rows of the matrix; the oldest is dropped", at_least=1)


RANK_P = (0.50, 0.16, 0.08, 0.05, 0.035, 0.025, 0.02, 0.015)
"""Approximate share of cases in which the successor of each rank is the right one; further ranks halve it."""


@lru_cache(maxsize=256)
def rank_tree(n_nodes: int, depth: int, top_k: int) -> Sequence[tuple[int, int]]:
    """Return (parent, rank) of every node of a draft, parents first.

    The paper's tree of 80 nodes was found by a search on its own data and is not printed. This is what such a search
    finds if ranks are right independently of one another: the nodes with the highest product of ``RANK_P``.
    """
    halved = [RANK_P[-1] / 2**i for i in range(1, top_k)]
    chances = [*RANK_P, *halved][:top_k]
    parents: list[int] = []
    ranks: list[int] = []
    reach: list[float] = []
    level = [ROOT]
    for _ in range(depth):
        first = len(reach)
        for node in level:
            path = 1.0 if node == ROOT else reach[node]
            parents += [node] * len(chances)
            ranks += range(len(chances))
            reach += [path * p for p in chances]
        level = [first + node for node in best_nodes(reach[first:], n_nodes)]
    kept = best_nodes(reach, n_nodes)
    return list(zip(parents_among(kept, parents), [ranks[node] for node in kept], strict=True))


class TokenRecycling(PerRequest[Matrix]):
    """The published method."""

    name = "token-recycling"

    def __init__(self, config: TokenRecyclingConfig | None = None) -> None:
        super().__init__()
        self._config = config or TokenRecyclingConfig(mode="paper")
        k = self._config.top_k
        self.needs = Needs(node_top_k=k, prompt_top_k=k if self._config.use_prompt else 0)
        self._shared: TenantState[Matrix] = TenantState()

    def new_state(self, view: RequestView) -> Matrix:
        return self._shared.of(view.request.scope, dict) if self._config.shared else {}

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        matrix, config = self.states[view.request_id], self._config
        root = int(view.context.view[-1])
        tokens: list[int] = []
        parents: list[int] = []
        placed: list[int | None] = []  # node of the shape -> node of the branch, where the matrix has a successor
        for parent, rank in rank_tree(min(budget, config.max_nodes), config.depth, config.top_k):
            above = ROOT if parent == ROOT else placed[parent]
            successors = () if above is None else matrix.get(root if above == ROOT else tokens[above], ())
            if above is None or rank >= len(successors):
                placed.append(None)
                continue
            placed.append(len(tokens))
            tokens.append(successors[rank])
            parents.append(above)
        return [Branch(tokens, self.name, parents)] if tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        matrix, context = self.states[view.request_id], view.context.view
        if outcome.prompt_top_ids is not None:
            start = outcome.prompt_start
            chunk = context[start : start + len(outcome.prompt_top_ids)]
            self._overwrite(matrix, chunk, outcome.prompt_top_ids)
        top = TopIds.of(outcome.top_ids)
        if len(top):
            root = context[len(context) - len(outcome.tokens) - 1]
            tokens = np.array([root, *outcome.tree.tokens], np.int32)
            self._overwrite(matrix, tokens[top.nodes + 1], top.ids)

    def _overwrite(self, matrix: Matrix, tokens: IntArray, ids: IntArray) -> None:
        """Replace the rows of ``tokens`` ``[n]`` by ``ids`` ``[n, k]``, later ones last, and drop the oldest rows."""
        for token, row in zip(tokens.tolist(), ids[:, : self._config.top_k].tolist(), strict=True):
            matrix.pop(token, None)
            matrix[token] = row
        while len(matrix) > self._config.max_tokens:
            del matrix[next(iter(matrix))]


def _token_recycling(settings: TokenRecyclingConfig, context: MethodContext) -> Speculator:
    if settings.mode == "paper":
        return TokenRecycling(settings)
    return Successors(context.options.settings_of(SuccessorConfig), (TARGET,), context.options.vocabulary)


TOKEN_RECYCLING = Method(
    name=TARGET,
    factory=_token_recycling,
    description="drafts the tokens that the target found probable after similar contexts of this text",
    source="arXiv 2408.08696",
    settings=TokenRecyclingConfig,
)
