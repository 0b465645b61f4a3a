"""Walks along tokens that a device's own kernels draw, planned with the step: no torch operator is in between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.cuda.plan.answer import Draw, Told
from engine.cuda.plan.items import Ints
from engine.sampling.logprobs import as_logprobs
from engine.sampling.shift import is_shifted
from engine.verify.masks import TreeMasks, drawn_params
from engine.verify.walk import Pair, Walk, WalkItem, follow


def is_plannable(item: WalkItem) -> bool:
    """Whether kernels draw an item's tokens: by temperature, top-k, top-p, min-p and a grammar's mask, but not where
    bias or penalties change logits, nor by the rejection rule."""
    return not item.rejects and not is_shifted(drawn_params(item), item.history)


class PlannedDraws:
    """The walks of some items; numbers of rows are those of the logits.

    Args:
        items: all ``is_plannable``.
    """

    def __init__(self, items: Sequence[WalkItem]) -> None:
        self._walks = [Walk() for _ in items]
        pairs = zip(items, self._walks, strict=True)
        self._pairs: list[Pair] = [pair for pair in pairs if pair[0].max_new is None or pair[0].max_new > 0]
        drawn = [(item, _drawn(item)) for item, _ in self._pairs]
        self.draws = [draw for _, its in drawn for draw in its]  # every row that a walk could pass
        asks = [its for item, its in drawn if item.params.logprobs is not None]
        self.with_logprobs = [row for its in asks for draw in its for row in draw.rows.tolist()]
        self.n_best = max((item.params.logprobs or 0 for item, _ in self._pairs), default=0)
        self._masks: TreeMasks | None = None

    @property
    def rows(self) -> set[int]:
        """Where tokens are drawn."""
        return {row for draw in self.draws for row in draw.rows.tolist()}

    @property
    def any_grammar(self) -> bool:
        """Whether rows are masked."""
        return any(item.grammar is not None for item, _ in self._pairs)

    def masks(self, first: int, n_rows: int, vocab: int) -> Ints:
        """Bits of allowed ids of rows from ``first`` on, ``[n_rows, ceil(vocab / 32)]``. Made on the host; slow."""
        if self._masks is None:
            self._masks = TreeMasks(self._pairs)
        words = np.full((n_rows, -(-vocab // 32)), -1, np.int32)
        for place in range(n_rows):
            known = self._masks.words_of(first + place)
            if known is not None:
                words[place] = known.view(np.int32)
        return words

    def finish(self, told: Told) -> list[Walk]:
        """Every item's walk, along what was told of all rows."""
        tokens = told.tokens.tolist()
        for item, walk in self._pairs:
            follow(item, walk, tokens.__getitem__)
            if self._masks is not None:
                self._masks.note_errors(item, walk)
            if item.params.logprobs is not None:
                rows = walk.rows(item)
                ks = [item.params.logprobs] * len(rows)
                walk.logprobs = as_logprobs(walk.tokens, ks, told.asked[rows], told.logprobs[rows], told.ids[rows])
        return self._walks


def _drawn(item: WalkItem) -> list[Draw]:
    """Every row that a walk could pass, by depth where noise decides."""
    tree = item.tree
    if not len(tree):
        return [Draw(np.array([item.first_row]), item.params, item.noise_key(0))]
    depths = np.array([0, *tree.depths])
    passes = ~np.array([False, *tree.probe])
    if item.max_new is not None:
        passes &= depths < item.max_new
    rows = item.first_row + np.flatnonzero(passes)
    if item.params.is_greedy:
        return [Draw(rows, item.params, None)]
    depths = depths[passes]
    return [Draw(rows[depths == depth], item.params, item.key(depth)) for depth in range(int(depths.max()) + 1)]
