"""Grammar masks of rows of logits: a token that a node's grammar does not allow cannot be drawn there.

A mask comes before bias, penalties, temperature and truncation, and none of them lifts it: top-k, top-p and min-p
choose among allowed tokens. A stop id that ``min_tokens`` forbids stays where the grammar allows nothing else.
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
from engine.verify.walk import Pair, WalkItem

_NEG_INF = float("-inf")


def drawn_params(item: WalkItem) -> SamplingParams:
    """Return an item's parameters; with a grammar without ``min_tokens``, which the grammar's mask enforces."""
    return item.params if item.grammar is None else item.params.without_minimum


def mask_current_nodes(logits: Tensor, pairs: Sequence[Pair], errors: dict[int, str]) -> Tensor:
    """Return ``logits`` ``[n, vocab]`` fp32 of the walks' current nodes, masked in a copy if a walk has a grammar.

    ``errors`` gets a message for each row of the step's logits at which a grammar allows no text.
    """
    words: dict[int, Words] = {}
    for i, (item, walk) in enumerate(pairs):
        if item.grammar is not None:
            words[i] = _without_stops(item, item.grammar.words(), 0)
            if item.grammar.error:
                errors[item.first_row + 1 + walk.node] = item.grammar.error
    if not words:
        return logits
    scores = logits.clone()
    apply_masks(scores, [*words], [*words.values()])
    return scores


def apply_masks(scores: Tensor, rows: Sequence[int], words: Sequence[Words]) -> None:
    """Set ids that a mask does not allow to -inf in ``scores`` ``[n, vocab]`` fp32; ``rows`` have a mask each."""
    vocab = scores.shape[-1]
    if is_host(scores.device):
        table = scores.numpy()
        for row, mask in zip(rows, words, strict=True):
            table[row, forbidden(mask, vocab)] = _NEG_INF
        return
    upload = Upload(scores.device)
    index, packed = upload.add(rows), upload.add(np.stack(words).view(np.int32), np.int32)
    upload.send()
    bits = packed.tensor[:, :, None] >> torch.arange(32, dtype=torch.int32, device=scores.device)
    allowed = (bits & 1).reshape(len(rows), -1)[:, :vocab] == 1
    scores.index_copy_(0, index.tensor, scores.index_select(0, index.tensor).masked_fill_(~allowed, _NEG_INF))


class TreeMasks:
    """The masks of all nodes of a step's trees that a walk could visit, by row of the logits."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.words: dict[int, Words] = {}
        self.errors: dict[int, str] = {}  # rows at which a grammar allows no text
        for item, _ in pairs:
            if item.grammar is None:
                continue
            deepest = len(item.tree) if item.max_new is None else item.max_new - 1
            for node, (words, error) in item.grammar.rows(item.tree, deepest).items():
                row, depth = item.first_row + 1 + node, 0 if node == ROOT else item.tree.depths[node]
                self.words[row] = _without_stops(item, words, depth)
                if error:
                    self.errors[row] = error

    def apply(self, scores: Tensor, numbers: Sequence[int]) -> None:
        """Mask ``scores`` ``[n, vocab]`` of the rows ``numbers`` in place; rows without a mask stay."""
        known = [(place, self.words[row]) for place, row in enumerate(numbers) if row in self.words]
        if known:
            apply_masks(scores, *zip(*known, strict=True))


def _without_stops(item: WalkItem, words: Words, depth: int) -> Words:
    """Return a mask without the stop ids that cannot be drawn yet, if that leaves anything."""
    if not masks_stops(item.params, item.history, range(depth)):
        return words
    left = words & ~words_of(item.params.stop_ids, 32 * len(words))
    return left if left.any() else words
