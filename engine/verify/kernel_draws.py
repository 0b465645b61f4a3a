"""Draws by an executor's kernels at every row that a walk could visit; planned with the step, so torch runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from engine.cuda.plan.answer import AnswerTable
from engine.cuda.plan.answer_layout import NO_DRAWS, PlannedDraws
from engine.cuda.plan.items import Ints
from engine.device import Array
from engine.sampling.keys import request_key
from engine.sampling.shift import is_shifted
from engine.upload import Upload
from engine.verify.masks import TreeMasks, drawn_params
from engine.verify.rules import Decision
from engine.verify.walk import Draws, Pair, WalkItem, current_rows, match_tokens


def can_kernels_draw(item: WalkItem) -> bool:
    """Whether kernels can draw an item's tokens.

    They know temperature, top-k, top-p, min-p and grammar masks, but neither bias, penalties nor the rejection rule.
    """
    return not item.params.rejects and not is_shifted(drawn_params(item), item.history)


class KernelDraws(Draws):
    """The draws of kernels; the step's answer launches them and sets ``table``. ``can_kernels_draw`` every item."""

    table: AnswerTable

    def __init__(self, pairs: Sequence[Pair], vocab: int, upload: Upload) -> None:
        super().__init__(pairs, vocab, upload)
        self.planned = _plan_draws([item for item, _ in pairs])
        self.n_best = max((item.params.logprobs or 0 for item, _ in pairs), default=0)
        self.has_grammar = any(item.grammar is not None for item, _ in pairs)
        self._masks: TreeMasks | None = None

    def make_masks(self, first: int, n_rows: int) -> Ints:
        """Return bits of the ids that rows from ``first`` on allow, ``[n_rows, ceil(vocab / 32)]``. Slow."""
        if self._masks is None:
            self._masks = TreeMasks(self.pairs)
            self.errors = self._masks.errors
        words = np.full((n_rows, -(-self.vocab // 32)), -1, np.int32)
        for place in range(n_rows):
            known = self._masks.words.get(first + place)
            if known is not None:
                words[place] = known.view(np.int32)
        return words

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
    most = [1 + len(item.tree) if item.max_new is None else item.max_new for item in items]
    lines = zip(items, most, strict=True)
    table = np.array(
        [(it.first_row, len(it.tree), it.n_context, n, it.params.logprobs is not None) for it, n in lines], np.int64
    )
    keys = np.array([request_key(item.params.seed, item.params.choice) for item in items], np.uint64)
    rules = np.fromiter(chain.from_iterable(item.params.draw_rules for item in items), np.float64, 4 * n)
    parents = np.concatenate([tree.parent_array for tree in trees])
    has_probes = any(tree.has_probes for tree in trees)
    probes = np.array([is_probe for tree in trees for is_probe in tree.probe] if has_probes else (), np.bool_)
    depths = np.empty(1 + max(map(len, trees)), np.int32)
    return PlannedDraws(table, keys, rules.reshape(n, 4), parents, probes, depths)
