"""Draws on a device at every row that a walk could visit, before the host walks; nothing in between waits.

Tokens at rows that no walk visits are wasted. On a GPU each costs a few passes over memory, and a sort where top-k,
top-p or min-p truncate it; a synchronisation per level of the trees costs more. Noise is the same at all nodes of one
depth and is computed once. Each row is computed by itself, so rows are drawn in pieces, and memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.device import Array
from engine.events import NOT_FINITE
from engine.sampling.draw import DeviceDraw
from engine.sampling.keys import NoiseKey
from engine.sampling.logprobs import logprobs_in_pieces, split_rows
from engine.sampling.processors import Processing
from engine.tree import ROOT
from engine.upload import Upload
from engine.verify.masks import TreeMasks, drawn_params
from engine.verify.rules import Decision
from engine.verify.walk import Draws, Pair, WalkItem, current_rows, match_tokens


@dataclass(slots=True, frozen=True)
class _VisitableRow:
    """A row that a walk could visit."""

    item: WalkItem
    number: int  # in the logits
    key: NoiseKey | None
    path: list[int]  # tokens below the root, if the draw depends on the item's history


class _DrawnPiece:
    """Rows that are drawn together."""

    def __init__(self, rows: Sequence[_VisitableRow], vocab: int, upload: Upload) -> None:
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


class AllRowDraws(Draws):
    """Draws at all rows at once; no item rejects."""

    def __init__(self, pairs: Sequence[Pair], vocab: int, upload: Upload) -> None:
        super().__init__(pairs, vocab, upload)
        items = [item for item, _ in pairs]
        drawn = [row for item in items if not item.is_plain for row in _list_rows(item)]
        self._any_plain = any(item.is_plain for item in items)
        self._drawn = [_DrawnPiece(rows, vocab, upload) for rows in split_rows(drawn, vocab)]
        self._logged = [row.number for item in items if item.params.logprobs is not None for row in _list_rows(item)]
        self._logged_pieces = [upload.add(rows) for rows in split_rows(self._logged, vocab)]

    def begin(self, logits: Tensor) -> list[Tensor]:
        # ``checks`` holds a row's largest logit or the sum of all: finite if all of them are.
        if self._any_plain:
            best, ids = logits.max(dim=-1)  # of equal logits the first; NaN counts as the largest
            tokens, checks = ids.int(), best.float()
        else:
            tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
            checks = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        masks = TreeMasks(self.pairs)  # now: the device is busy with the layers
        self.errors = masks.errors
        for piece in self._drawn:
            piece.draw(logits, tokens, checks, masks)
        if not self._logged:
            return [tokens, checks]
        most = max(item.params.logprobs or 0 for item, _ in self.pairs)
        numbers = (piece.tensor for piece in self._logged_pieces)
        pieces = ((rows, tokens.index_select(0, rows)) for rows in numbers)
        return [tokens, checks, *logprobs_in_pieces(logits, pieces, most)]

    def receive(self, arrays: Iterator[Array]) -> None:
        self._tokens = next(arrays).tolist()
        self.errors |= dict.fromkeys(np.flatnonzero(~np.isfinite(next(arrays))).tolist(), NOT_FINITE)
        self._logprobs = [next(arrays) for _ in range(3)] if self._logged else []

    def decide(self, pairs: Sequence[Pair]) -> list[Decision]:
        return match_tokens(pairs, [self._tokens[row] for row in current_rows(pairs)])

    def read_logprobs(self, rows: list[int], tokens: list[int], k: int) -> Sequence[Array]:
        places = {row: place for place, row in enumerate(self._logged)}
        visited = [places[row] for row in rows]
        return [array[visited] for array in self._logprobs]


def _list_rows(item: WalkItem) -> list[_VisitableRow]:
    """Return every row that a walk could visit."""
    tree, params = item.tree, item.params
    keys = [item.noise_key(depth) for depth in range(1 + max(tree.depths, default=0))]
    rows = [_VisitableRow(item, item.first_row, keys[0], [])]
    paths: list[list[int]] = []
    for node, (token, parent, depth) in enumerate(zip(tree.tokens, tree.parents, tree.depths, strict=True)):
        path = [*(paths[parent] if parent != ROOT else ()), token] if params.remembers else []
        paths.append(path)
        if not tree.probe[node] and (item.max_new is None or depth < item.max_new):
            rows.append(_VisitableRow(item, item.first_row + 1 + node, keys[depth], path))
    return rows
