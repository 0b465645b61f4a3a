"""Walks along tokens that an executor's kernels draw; planned with the step, so no torch operator runs in between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from engine.cuda.plan.answer import AnswerTable
from engine.cuda.plan.answer_layout import NO_DRAWS, Draws
from engine.cuda.plan.items import Ints
from engine.sampling.keys import request_key
from engine.sampling.logprobs import as_logprobs
from engine.sampling.shift import is_shifted
from engine.verify.masks import TreeMasks, drawn_params
from engine.verify.walk import Pair, Walk, WalkItem, follow


def is_plannable(item: WalkItem) -> bool:
    """Whether kernels can draw an item's tokens.

    They know temperature, top-k, top-p, min-p and grammar masks, but neither bias, penalties nor the rejection rule.
    """
    return not item.rejects and not is_shifted(drawn_params(item), item.history)


class PlannedDraws:
    """The draws of a step and the walks along them; rows are numbered as in the logits.

    Args:
        items: all of them ``is_plannable``.
    """

    def __init__(self, items: Sequence[WalkItem]) -> None:
        self._walks = [Walk() for _ in items]
        pairs = zip(items, self._walks, strict=True)
        self._pairs: list[Pair] = [pair for pair in pairs if pair[0].max_new is None or pair[0].max_new > 0]
        self.draws = _draws_of([item for item, _ in self._pairs])
        self.n_best = max((item.params.logprobs or 0 for item, _ in self._pairs), default=0)
        self._masks: TreeMasks | None = None

    @property
    def any_grammar(self) -> bool:
        """Whether the grammar of an item masks rows."""
        return any(item.grammar is not None for item, _ in self._pairs)

    def masks(self, first: int, n_rows: int, vocab: int) -> Ints:
        """Return bits of the ids that rows from ``first`` on allow, ``[n_rows, ceil(vocab / 32)]``. Slow."""
        if self._masks is None:
            self._masks = TreeMasks(self._pairs)
        words = np.full((n_rows, -(-vocab // 32)), -1, np.int32)
        for place in range(n_rows):
            known = self._masks.words_of(first + place)
            if known is not None:
                words[place] = known.view(np.int32)
        return words

    def finish(self, table: AnswerTable) -> list[Walk]:
        """Return every item's walk along the drawn tokens of all rows."""
        tokens = table.tokens.tolist()
        for item, walk in self._pairs:
            follow(item, walk, tokens.__getitem__)
            if self._masks is not None:
                self._masks.note_errors(item, walk)
            if item.params.logprobs is not None:
                rows = walk.rows(item)
                ks = [item.params.logprobs] * len(rows)
                walk.logprobs = as_logprobs(walk.tokens, ks, table.asked[rows], table.logprobs[rows], table.ids[rows])
        return self._walks


def _draws_of(items: Sequence[WalkItem]) -> Draws:
    """Return the draws of the items' trees."""
    if not items:
        return NO_DRAWS
    trees, n = [item.tree for item in items], len(items)
    table = np.array([_numbers(item) for item in items], np.int64)
    keys = np.array([request_key(item.params.seed, item.params.choice) for item in items], np.uint64)
    rules = np.fromiter(chain.from_iterable(item.params.draw_rules for item in items), np.float64, 4 * n)
    parents = np.concatenate([tree.parent_array for tree in trees])
    has_probes = any(tree.has_probes for tree in trees)
    probes = np.array([is_probe for tree in trees for is_probe in tree.probe] if has_probes else (), np.bool_)
    depths = np.empty(1 + max(map(len, trees)), np.int32)
    return Draws(table, keys, rules.reshape(n, 4), parents, probes, depths)


def _numbers(item: WalkItem) -> tuple[int, int, int, int, bool]:
    """Return an item's line of ``Draws.table``."""
    n = len(item.tree)
    most = 1 + n if item.max_new is None else item.max_new
    return item.first_row, n, item.n_context, most, item.params.logprobs is not None
