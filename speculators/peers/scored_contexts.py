"""What the target ranked highest after the contexts of a step, and tables that keep it by context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np

from engine.protocol import Outcome, RequestView
from engine.top_ids import TopIds
from engine.tree import FloatArray, IntArray

Context = tuple[int, ...]
ScoredContext = tuple[Context, list[int], list[float]]  # ids, best first, and their probabilities
RowT = TypeVar("RowT")


class RecentRows(dict[Context, RowT], Generic[RowT]):
    """Maps contexts to rows; beyond ``most`` rows, the one written longest ago is dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, context: Context, row: RowT) -> None:
        self.pop(context, None)
        self[context] = row
        if len(self) > self._most:
            del self[next(iter(self))]


def scored_contexts(view: RequestView, outcome: Outcome, order: int, top_k: int) -> Iterator[ScoredContext]:
    """Yield every context that the target scored: its last ``order`` tokens, the best ids, their probabilities.

    Prompt positions come first, then the root and the nodes of the tree, rejected ones too. The probabilities of the
    ``top_k`` best ids sum to 1.
    """
    context = view.context.view
    scored: list[tuple[list[Context], IntArray, FloatArray]] = []  # contexts, [n, k] ids and their log-probabilities
    if outcome.prompt_top_ids is not None and outcome.prompt_top_logprobs is not None:
        before = context[max(outcome.prompt_start - order, 0) :].tolist()
        start = min(outcome.prompt_start, order)
        ends = range(start + 1, start + 1 + len(outcome.prompt_top_ids))
        tails = [tuple(before[max(end - order, 0) : end]) for end in ends]
        scored.append((tails, outcome.prompt_top_ids, outcome.prompt_top_logprobs))
    top = TopIds.of(outcome.top_ids)
    if len(top) and top.logprobs is not None:
        n_before = len(context) - len(outcome.tokens)
        tails = [tuple(context[max(n_before - order, 0) : n_before].tolist())]
        for token, parent in zip(outcome.tree.tokens, outcome.tree.parents, strict=True):
            tails.append((*tails[parent + 1], token)[-order:])
        scored.append(([tails[node + 1] for node in top.nodes.tolist()], top.ids, top.logprobs))
    for tails, ids, logprobs in scored:
        p = np.exp(logprobs[:, :top_k])
        p /= p.sum(axis=1, keepdims=True)
        yield from zip(tails, ids[:, :top_k].tolist(), p.tolist(), strict=True)
