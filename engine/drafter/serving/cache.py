"""A drafter's keys and values, and forwards over them.

The cache has the target's block numbers, so that a sequence's blocks hold its rows in both, and a prefix that is copied
is copied in both. Rows are written at their final slots once the target has verified; what is drafted lies in the slots
behind them and is overwritten by the next step's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention.batches import Share
from engine.attention.hook import PackedStep, attend
from engine.attention.packing import Attends, pack_shares
from engine.drafter.networks.layer import Attend
from engine.drafter.spec import LayerShape
from engine.kv.arena import KVArena
from engine.upload import Upload, Uploaded


@dataclass(frozen=True, slots=True)
class Prepared:
    """A forward that can run."""

    positions: Tensor  # int64 [n_rows]
    attend: Attend


class DrafterCache:
    """Keys and values of a drafter's layers.

    Args:
        shape: of the layers.
        n_blocks: the target's.
        block_size: tokens per block.
        dtype: of the drafter.
        device: where it is.
        reference: attend as the slow oracle does.
    """

    def __init__(
        self,
        shape: LayerShape,
        n_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        reference: bool = False,
    ) -> None:
        self.arena = KVArena(shape.n_layers, n_blocks, block_size, shape.n_kv_heads, shape.head_dim, dtype, device)
        self._shape, self._device = shape, device
        way: Attends = "one by one" if device.type == "cpu" else "together"
        self._attends: Attends = "reference" if reference else way

    def prepare(self, shares: Sequence[Share], n_new: Sequence[int] | None = None) -> Prepared:
        """A forward of rows at ``n_cached + depths`` of every sequence, in the slots behind its first ``n_cached``.

        Args:
            shares: of the sequences, none without rows.
            n_new: how many of a share's rows, its last ones, are run; those before them were, in an earlier forward of
                the same draft. None: all.
        """
        upload = Upload(self._device)
        groups = self._shape.n_heads // self._shape.n_kv_heads
        step = pack_shares(shares, self.arena, upload, groups, {self._shape.window}, self._attends)
        counts = [len(share.depths) for share in shares] if n_new is None else n_new
        first = [len(share.depths) - n for share, n in zip(shares, counts, strict=True)]
        positions = [s.n_cached + depth for s, begin in zip(shares, first, strict=True) for depth in s.depths[begin:]]
        placed = upload.add(positions)
        older = _Older.of(shares, first, upload) if any(first) else None
        if older is not None:
            step.write_start, step.write_rows = None, older.new_slots
        upload.send()
        return Prepared(placed.tensor, self._attend(step, older))

    def write(self, shares: Sequence[Share], rows: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Put keys and values ``[n_rows, n_kv_heads, head_dim]`` of every layer in their slots."""
        upload = Upload(self._device)
        slots = upload.add(_slots(shares))
        upload.send()
        for layer, (key, value) in enumerate(rows):
            store = self.arena.layer(layer)
            store.keys.index_copy_(0, slots.tensor, key)
            store.values.index_copy_(0, slots.tensor, value)

    def _attend(self, step: PackedStep, older: _Older | None) -> Attend:
        scale, window = self._shape.head_dim**-0.5, self._shape.window

        def attend_rows(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (rows.transpose(0, 1).unsqueeze(0) for rows in (query, key, value))
            store = step.write(layer, key, value)
            if older is None:
                return attend(step, query, (key, value), store, scale, window)[0]
            spread = query.new_zeros(1, query.shape[1], older.n_rows, query.shape[3])
            spread.index_copy_(2, older.places.tensor, query)
            own = (store.read_keys, store.read_values)
            if step.batches:
                own = (own[0].index_select(2, older.slots.tensor), own[1].index_select(2, older.slots.tensor))
            return attend(step, spread, own, store, scale, window)[0].index_select(0, older.places.tensor)

        return attend_rows


@dataclass(frozen=True, slots=True)
class _Older:
    """Rows of which some were run in an earlier forward.

    Their attention is computed again, of queries that are zero, and dropped: it costs next to nothing, and whatever
    attends needs no case of its own.
    """

    n_rows: int
    slots: Uploaded  # int64 [n_rows], arena rows
    places: Uploaded  # int64 [n_new], of those that are run, among all
    new_slots: Uploaded  # int64 [n_new]

    @classmethod
    def of(cls, shares: Sequence[Share], first: Sequence[int], upload: Upload) -> _Older:
        """Rows of ``shares``; in each those before ``first`` were run."""
        is_new = np.concatenate(
            [np.arange(len(share.depths)) >= begin for share, begin in zip(shares, first, strict=True)]
        )
        slots = _slots(shares)
        return cls(len(slots), upload.add(slots), upload.add(np.flatnonzero(is_new)), upload.add(slots[is_new]))


def _slots(shares: Sequence[Share]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Arena rows of all rows, ``[n_rows]``."""
    return np.concatenate([s.table.row_numbers(s.n_cached, s.n_cached + len(s.depths)) for s in shares])
