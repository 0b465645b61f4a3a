"""Walks for a device: a token is drawn at every row that a walk could pass, then the host walks along them.

Rows that no walk passes are drawn in vain. On a GPU each costs a few passes over memory, and a sort where top-k, top-p
or min-p truncate it; a synchronisation per level of the trees costs more. Noise is the same at all nodes of one depth
and is made once. Each row is computed by itself, so many rows are drawn in pieces, and memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeVar

import torch
from torch import Tensor

from engine.device import Array
from engine.events import NOT_FINITE
from engine.sampling.draw import DeviceDraw
from engine.sampling.keys import NoiseKey
from engine.sampling.logprobs import as_logprobs, logprobs_in_pieces
from engine.sampling.processors import Processing
from engine.tree import ROOT
from engine.upload import Upload
from engine.verify.masks import TreeMasks, drawn_params
from engine.verify.walk import Pair, WalkItem, follow

CELLS = 1 << 25  # logits that are drawn from together; sorting and summing them takes up to 49 bytes each, 1.6 GB

_T = TypeVar("_T")


@dataclass(slots=True, frozen=True)
class _Row:
    """A row that a walk could pass."""

    item: WalkItem
    number: int  # in the logits
    key: NoiseKey | None
    path: list[int]  # tokens below the root, where the item's history counts


class _DrawnRows:
    """Rows that are drawn together."""

    def __init__(self, rows: Sequence[_Row], vocab: int, upload: Upload) -> None:
        self._numbers = [row.number for row in rows]
        self._rows = upload.add(self._numbers)
        params, histories = [drawn_params(row.item) for row in rows], [row.item.history for row in rows]
        self._processing = Processing(params, histories, vocab, upload, [row.path for row in rows])
        self._draw = DeviceDraw([row.key for row in rows], upload)

    def draw(self, logits: Tensor, tokens: Tensor, checks: Tensor, masks: TreeMasks) -> None:
        """Write the rows' tokens into ``tokens``, and the sums of their logits into ``checks``."""
        rows = self._rows.tensor
        own = logits.index_select(0, rows).float()
        checks.index_copy_(0, rows, own.sum(dim=-1))
        masks.apply(own, self._numbers)
        scores = self._processing.apply(own, owned=True)
        tokens.index_copy_(0, rows, self._draw.apply(scores))


class DrawnAtOnce:
    """Planned on the host, begun on the device, finished on the host; nothing in between waits.

    Args:
        pairs: the walks; none may use the rejection rule.
        vocab: width of the logits.
        upload: takes what has to be on their device.
    """

    def __init__(self, pairs: Sequence[Pair], vocab: int, upload: Upload) -> None:
        self._pairs = pairs
        items = [item for item, _ in pairs]
        drawn = [row for item in items if not item.is_plain for row in _rows(item)]
        self._any_plain = any(item.is_plain for item in items)
        self._drawn = [_DrawnRows(rows, vocab, upload) for rows in pieces(drawn, vocab)]
        self._told = [row.number for item in items if item.params.logprobs is not None for row in _rows(item)]
        self._told_pieces = [upload.add(rows) for rows in pieces(self._told, vocab)]

    def begin(self, logits: Tensor) -> list[Tensor]:
        """Draw from ``logits`` ``[rows, vocab]``, any float dtype; returns what is to be fetched."""
        # ``checks``: finite where all logits of a row are, the largest logit or their sum.
        if self._any_plain:
            best, ids = logits.max(dim=-1)  # of equal logits the first; NaN counts as the largest
            tokens, checks = ids.int(), best.float()
        else:
            tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
            checks = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        self._masks = TreeMasks(self._pairs)  # now: the device is busy with the layers
        for piece in self._drawn:
            piece.draw(logits, tokens, checks, self._masks)
        if not self._told:
            return [tokens, checks]
        most = max(item.params.logprobs or 0 for item, _ in self._pairs)
        rows = (piece.tensor for piece in self._told_pieces)
        return [tokens, checks, *logprobs_in_pieces(logits, ((its, tokens.index_select(0, its)) for its in rows), most)]

    def finish(self, arrays: Iterator[Array]) -> None:
        """Walk along what ``begin`` returned, now on the host; what follows it is left in ``arrays``."""
        tokens, checks = next(arrays).tolist(), next(arrays)
        for item, walk in self._pairs:
            follow(item, walk, tokens.__getitem__)
            self._masks.note_errors(item, walk)
            if not all(isfinite(checks[row]) for row in walk.rows(item)):
                walk.error = NOT_FINITE
        if not self._told:
            return
        places = {row: place for place, row in enumerate(self._told)}
        told = [next(arrays) for _ in range(3)]
        for item, walk in self._pairs:
            if item.params.logprobs is not None:
                passed = [places[row] for row in walk.rows(item)]
                ks = [item.params.logprobs] * len(passed)
                walk.logprobs = as_logprobs(walk.tokens, ks, *(array[passed] for array in told))


def pieces(rows: Sequence[_T], vocab: int) -> list[Sequence[_T]]:
    """Rows of logits in pieces of at most ``CELLS`` logits, and at least one row."""
    size = max(1, CELLS // vocab)
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _rows(item: WalkItem) -> list[_Row]:
    """Every row that a walk could pass."""
    tree, params = item.tree, item.params
    keys = [item.noise_key(depth) for depth in range(1 + max(tree.depths, default=0))]
    rows = [_Row(item, item.first_row, keys[0], [])]
    paths: list[list[int]] = []
    for node, (token, parent, depth) in enumerate(zip(tree.tokens, tree.parents, tree.depths, strict=True)):
        path = [*(paths[parent] if parent != ROOT else ()), token] if params.remembers else []
        paths.append(path)
        if not tree.probe[node] and (item.max_new is None or depth < item.max_new):
            rows.append(_Row(item, item.first_row + 1 + node, keys[depth], path))
    return rows
