"""Token Recycling as published (Luo et al. 2024, arXiv 2408.08696): the target's own leftovers as drafts.

A matrix holds the most recent best successors of every token: every scored node, accepted or not, overwrites the row of
its token with the ids the target ranked highest behind it. A draft is a fixed tree, shaped by rank, read off the matrix
from the last token on. The original shares the matrix between requests; here that is an option, and the prompt's own
logits can fill it before the first draft (the original wastes them).

Our default is another method of the same inputs, the target half of ``speculators.successors.speculator``: contexts of
several lengths instead of the last token, probabilities instead of ranks, a tree grown by path probability.
``mode="paper"`` is the published one. It helps on any text, the more so the longer it goes on; its price is reading
back ids behind every node.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from engine.top_ids import TopIds
from engine.tree import ROOT, IntArray
from speculators.method import Method, MethodContext
from speculators.tenant_state import TenantState

Matrix = dict[int, list[int]]  # token -> its successors, best first; the rows that exist of vocabulary x k


@dataclass(frozen=True, slots=True)
class TokenRecyclingConfig:
    """Token Recycling settings.

    Raises:
        ConfigError: a value is out of range.
    """

    mode: Literal["mixed", "paper"] = "mixed"  # our mixture, or the published algorithm with what follows
    top_k: int = 8  # successors per token
    max_nodes: int = 80
    depth: int = 6  # tokens
    use_prompt: bool = True  # fill the matrix from the prompt's logits; the paper does not
    shared: bool = False  # one matrix per scope, as in the paper; else one per request
    max_tokens: int = 65536  # rows kept

    def __post_init__(self) -> None:
        if self.mode not in ("mixed", "paper"):
            raise ConfigError(f"token-recycling: mode must be mixed or paper, got {self.mode!r}")
        for name in ("top_k", "max_nodes", "depth", "max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"token-recycling: {name} must be at least 1, got {getattr(self, name)}")


RANK_P = (0.50, 0.16, 0.08, 0.05, 0.035, 0.025, 0.02, 0.015)
"""How often the successor of each rank is the right one, about; further ranks halve."""


def rank_tree(n_nodes: int, depth: int, top_k: int) -> list[tuple[int, int]]:
    """The shape of the draft: (parent, rank) of every node, parents first.

    The paper's tree of 80 nodes was found by search on its own data and is not printed. This is what such a search
    finds when ranks are right independently of one another: the nodes with the highest product of ``RANK_P``.
    """
    shape: list[tuple[int, int]] = []
    depths: list[int] = []
    waiting = [(-_rank_p(rank), 0, ROOT, rank) for rank in range(top_k)]  # -path probability, depth - 1, parent, rank
    heapify(waiting)
    while waiting and len(shape) < n_nodes:
        path, level, parent, rank = heappop(waiting)
        shape.append((parent, rank))
        depths.append(level)
        if level + 1 < depth:
            for below in range(top_k):
                heappush(waiting, (path * _rank_p(below), level + 1, len(shape) - 1, below))
    return shape


def _rank_p(rank: int) -> float:
    return RANK_P[rank] if rank < len(RANK_P) else RANK_P[-1] / 2 ** (rank - len(RANK_P) + 1)


class TokenRecycling:
    """The published method."""

    name = "token-recycling"

    def __init__(self, config: TokenRecyclingConfig | None = None) -> None:
        self._config = config or TokenRecyclingConfig(mode="paper")
        k = self._config.top_k
        self.needs = Needs(node_top_k=k, prompt_top_k=k if self._config.use_prompt else 0)
        self._matrices: dict[int, Matrix] = {}  # request id -> its matrix
        self._shared: TenantState[Matrix] = TenantState()
        self._shapes: dict[int, list[tuple[int, int]]] = {}  # nodes -> shape

    def begin(self, view: RequestView) -> None:
        """An empty matrix, or the scope's."""
        shared = self._config.shared
        self._matrices[view.request_id] = self._shared.of(view.request.scope, dict) if shared else {}

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """The tree of ranks, where the matrix knows successors."""
        matrix = self._matrices[view.request_id]
        n_nodes = min(budget, self._config.max_nodes)
        shape = self._shapes.get(n_nodes)
        if shape is None:
            shape = self._shapes[n_nodes] = rank_tree(n_nodes, self._config.depth, self._config.top_k)
        root = int(view.context.view[-1])
        tokens: list[int] = []
        parents: list[int] = []
        placed: list[int | None] = []  # node of the shape -> node of the branch
        for parent, rank in shape:
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
        """Overwrite the rows of all tokens that the target scored."""
        matrix, context = self._matrices[view.request_id], view.context.view
        if outcome.prompt_top_ids is not None:
            start = outcome.prompt_start
            chunk = context[start : start + len(outcome.prompt_top_ids)]
            self._overwrite(matrix, chunk, outcome.prompt_top_ids)
        top = TopIds.of(outcome.top_ids)
        if len(top):
            root = context[len(context) - len(outcome.tokens) - 1]
            tokens = np.array([root, *outcome.tree.tokens], np.int32)
            self._overwrite(matrix, tokens[top.nodes + 1], top.ids)

    def end(self, view: RequestView) -> None:
        """Drop the request's matrix; a shared one stays."""
        self._matrices.pop(view.request_id, None)

    def _overwrite(self, matrix: Matrix, tokens: IntArray, ids: IntArray) -> None:
        """Rows of ``tokens`` ``[n]`` become ``ids`` ``[n, k]``, the later ones counting; oldest rows give way."""
        for token, row in zip(tokens.tolist(), ids[:, : self._config.top_k].tolist(), strict=True):
            matrix.pop(token, None)
            matrix[token] = row
        while len(matrix) > self._config.max_tokens:
            del matrix[next(iter(matrix))]


def _token_recycling(settings: TokenRecyclingConfig, context: MethodContext) -> Speculator:
    from speculators.successors.config import TARGET, SuccessorConfig
    from speculators.successors.speculator import Successors

    if settings.mode == "paper":
        return TokenRecycling(settings)
    return Successors(context.options.of(SuccessorConfig), (TARGET,), context.options.vocabulary)


TOKEN_RECYCLING = Method(
    name="token-recycling",
    factory=lambda settings, context: _token_recycling(settings, context),
    description="the target's own best successors after contexts it has scored",
    settings=TokenRecyclingConfig,
)
