"""Grammar masks of rows of logits: what a node's grammar does not allow cannot be drawn there.

A mask comes before bias, penalties, temperature and truncation, and none of them lifts it: top-k, top-p and min-p
choose among what is allowed. A stop id that ``min_tokens`` forbids stays where the grammar allows nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.device import is_host
from engine.grammar.words import Words, forbidden, words_of
from engine.sampling.params import SamplingParams
from engine.sampling.shift import masks_stops
from engine.tree import ROOT
from engine.upload import Upload
from engine.verify.walk import Pair, Walk, WalkItem

_NEG_INF = float("-inf")


def drawn_params(item: WalkItem) -> SamplingParams:
    """What else changes an item's rows; a grammar's mask sees to ``min_tokens`` itself."""
    return item.params if item.grammar is None else item.params.without_minimum


def masked(logits: Tensor, pairs: Sequence[Pair]) -> Tensor:
    """``logits`` ``[n, vocab]`` fp32 of the nodes where the walks stand, masked in a copy if any has a grammar."""
    rows = [i for i, (item, _) in enumerate(pairs) if item.grammar is not None]
    if not rows:
        return logits
    words = [_without_stops(pairs[i][0], pairs[i][0].grammar.words(), 0) for i in rows]  # type: ignore[union-attr]
    scores = logits.clone()
    apply_masks(scores, rows, words)
    for i in rows:
        item, walk = pairs[i]
        walk.error = "" if item.grammar is None else item.grammar.error
    return scores


def apply_masks(scores: Tensor, rows: Sequence[int], words: Sequence[Words]) -> None:
    """Set what masks do not allow to -inf, in ``scores`` ``[n, vocab]`` fp32, in place; a mask for each of ``rows``."""
    vocab = scores.shape[-1]
    if is_host(scores.device):
        table = scores.numpy()
        for row, its in zip(rows, words, strict=True):
            table[row, forbidden(its, vocab)] = _NEG_INF
        return
    upload = Upload(scores.device)
    index, packed = upload.add(rows), upload.add(np.stack(words).view(np.int32), np.int32)
    upload.send()
    bits = packed.tensor[:, :, None] >> torch.arange(32, dtype=torch.int32, device=scores.device)
    allowed = (bits & 1).reshape(len(rows), -1)[:, :vocab] == 1
    scores.index_copy_(0, index.tensor, scores.index_select(0, index.tensor).masked_fill_(~allowed, _NEG_INF))


class TreeMasks:
    """The masks of all nodes of a step's trees that a walk could pass. Made on the host, while a device computes."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._words: dict[int, Words] = {}  # by row of the logits
        self._errors: dict[int, str] = {}
        for item, _ in pairs:
            if item.grammar is None:
                continue
            deepest = len(item.tree) if item.max_new is None else item.max_new - 1
            for node, (words, error) in item.grammar.rows(item.tree, deepest).items():
                row, depth = item.first_row + 1 + node, 0 if node == ROOT else item.tree.depths[node]
                self._words[row] = _without_stops(item, words, depth)
                if error:
                    self._errors[row] = error

    def apply(self, scores: Tensor, numbers: Sequence[int]) -> None:
        """Mask ``scores`` ``[n, vocab]``, which are those rows of the logits, in place. Rows no walk gets to stay."""
        known = [(place, self._words[row]) for place, row in enumerate(numbers) if row in self._words]
        if known:
            apply_masks(scores, *zip(*known, strict=True))

    def words_of(self, row: int) -> Words | None:
        """The mask of a row of the logits; None: it has none."""
        return self._words.get(row)

    def note_errors(self, item: WalkItem, walk: Walk) -> None:
        """Say of a walk that is over why its text cannot go on, if it cannot."""
        walk.error = next((self._errors[row] for row in walk.rows(item) if row in self._errors), "")


def _without_stops(item: WalkItem, words: Words, depth: int) -> Words:
    """A mask without the stop ids that cannot be drawn yet, if that leaves anything."""
    if not masks_stops(item.params, item.history, range(depth)):
        return words
    left = words & ~words_of(item.params.stop_ids, 32 * len(words))
    return left if left.any() else words
