"""Draws by an executor's kernels at every row that a walk could visit; planned with the step, so torch runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from torch import Tensor

from engine.cuda.plan.answer import AnswerTable
from engine.cuda.plan.answer_layout import NO_DRAWS, PlannedDraws
from engine.cuda.plan.items import Ints
from engine.device import Array
from engine.sampling.keys import request_key
from engine.sampling.shift import is_shifted
from engine.upload import Upload
from engine.verify.masks import TreeMasks, drawn_params
from engine.verify.rules import Decision
from engine.verify.walk import Pair, WalkItem, current_rows, match_tokens


def can_kernels_draw(item: WalkItem) -> bool:
    """Whether kernels can draw an item's tokens.

    They know temperature, top-k, top-p, min-p and grammar masks, but neither bias, penalties nor the rejection rule.
    """
    return not item.rejects and not is_shifted(drawn_params(item), item.history)


class KernelDraws:
    """The draws of a step in which kernels draw; the step's answer plans them and sets ``table``.

    Args:
        pairs: the walks; ``can_kernels_draw`` every item.
        vocab: width of the logits.
        upload: not used: the answer uploads its plan.
    """

    table: AnswerTable

    def __init__(self, pairs: Sequence[Pair], vocab: int, upload: Upload) -> None:
        self._pairs, self._vocab = pairs, vocab
        self.errors: dict[int, str] = {}
        self.planned = _plan_draws([item for item, _ in pairs])
        self.n_best = max((item.params.logprobs or 0 for item, _ in pairs), default=0)
        self.has_grammar = any(item.grammar is not None for item, _ in pairs)
        self._masks: TreeMasks | None = None

    def make_masks(self, first: int, n_rows: int) -> Ints:
        """Return bits of the ids that rows from ``first`` on allow, ``[n_rows, ceil(vocab / 32)]``. Slow."""
        if self._masks is None:
            self._masks = TreeMasks(self._pairs)
            self.errors = self._masks.errors
        words = np.full((n_rows, -(-self._vocab // 32)), -1, np.int32)
        for place in range(n_rows):
            known = self._masks.words.get(first + place)
            if known is not None:
                words[place] = known.view(np.int32)
        return words

    def begin(self, logits: Tensor) -> list[Tensor]:
        """Return nothing: the answer's kernels draw."""
        return []

    def receive(self, arrays: Iterator[Array]) -> None:
        self._tokens = self.table.tokens.tolist()

    def decide(self, pairs: Sequence[Pair]) -> list[Decision]:
        return match_tokens(pairs, [self._tokens[row] for row in current_rows(pairs)])

    def read_logprobs(self, rows: list[int], tokens: list[int], k: int) -> Sequence[Array]:
        return self.table.asked[rows], self.table.logprobs[rows], self.table.ids[rows]


def _plan_draws(items: Sequence[WalkItem]) -> PlannedDraws:
    """Return the draws of the items' trees as arrays."""
    if not items:
        return NO_DRAWS
    trees, n = [item.tree for item in items], len(items)
    table = np.array([_describe(item) for item in items], np.int64)
    keys = np.array([request_key(item.params.seed, item.params.choice) for item in items], np.uint64)
    rules = np.fromiter(chain.from_iterable(item.params.draw_rules for item in items), np.float64, 4 * n)
    parents = np.concatenate([tree.parent_array for tree in trees])
    has_probes = any(tree.has_probes for tree in trees)
    probes = np.array([is_probe for tree in trees for is_probe in tree.probe] if has_probes else (), np.bool_)
    depths = np.empty(1 + max(map(len, trees)), np.int32)
    return PlannedDraws(table, keys, rules.reshape(n, 4), parents, probes, depths)


def _describe(item: WalkItem) -> tuple[int, int, int, int, bool]:
    """Return an item's line of ``PlannedDraws.table``."""
    n = len(item.tree)
    most = 1 + n if item.max_new is None else item.max_new
    return item.first_row, n, item.n_context, most, item.params.logprobs is not None
