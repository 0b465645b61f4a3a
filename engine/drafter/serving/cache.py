"""A drafter's keys and values, and forwards over them.

The cache has the target's block numbers, so that a sequence's blocks hold its rows in both, and a prefix that is copied
is copied in both. Rows are written at their final slots once the target has verified; what is drafted lies in the slots
after them and is overwritten by the next step's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.packed_step import PackedStep
from engine.drafter.networks.layer import Attend
from engine.drafter.serving.rows import DraftRows
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
        n_blocks: the target's, and one more after them for rows that belong to no sequence.
        block_size: tokens per block.
        dtype: of the drafter.
        device: where it is.
    """

    def __init__(
        self,
        shape: LayerShape,
        n_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.arena = KVArena(shape.n_layers, n_blocks, block_size, shape.n_kv_heads, shape.head_dim, dtype, device)
        self._shape, self._device = shape, device

    def prepare(self, rows: Sequence[DraftRows]) -> Prepared:
        """A forward of sequences' rows, none of them without any."""
        upload = Upload(self._device)
        step = PackedStep.of([its.segment() for its in rows], self.arena, upload)
        placed = upload.add([position for its in rows for position in its.positions])
        older = _Older.of(rows, upload) if any(its.n_run for its in rows) else None
        if older is not None:
            step.write_start, step.write_rows = None, older.new_slots
        upload.send()
        return Prepared(placed.tensor, self._attend(step, older))

    def write(self, slots: Tensor, kept: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Put keys and values ``[n, n_kv_heads, head_dim]`` of every layer in arena rows, int64 ``[n]``."""
        for layer, (key, value) in enumerate(kept):
            store = self.arena.layer(layer)
            store.keys.index_copy_(0, slots, key)
            store.values.index_copy_(0, slots, value)

    def _attend(self, step: PackedStep, older: _Older | None) -> Attend:
        scale, window = self._shape.head_dim**-0.5, self._shape.window

        def attend_rows(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (rows.transpose(0, 1).unsqueeze(0) for rows in (query, key, value))
            store = step.write(layer, key, value)
            if older is None:
                return step.attend(query, store, scale, window)[0]
            spread = query.new_zeros(1, query.shape[1], older.n_rows, query.shape[3])
            spread.index_copy_(2, older.places.tensor, query)
            return step.attend(spread, store, scale, window)[0].index_select(0, older.places.tensor)

        return attend_rows


@dataclass(frozen=True, slots=True)
class _Older:
    """Rows of which some were run in an earlier forward.

    Their attention is computed again, of queries that are zero, and dropped: it costs next to nothing, and whatever
    attends needs no case of its own.
    """

    n_rows: int
    places: Uploaded  # int64 [n_new], of those that are run, among all
    new_slots: Uploaded  # int64 [n_new]

    @classmethod
    def of(cls, rows: Sequence[DraftRows], upload: Upload) -> _Older:
        """Of sequences' rows."""
        is_new = np.concatenate([np.arange(its.n_rows) >= its.n_run for its in rows])
        slots = slots_of(rows)
        return cls(len(slots), upload.add(np.flatnonzero(is_new)), upload.add(slots[is_new]))


def slots_of(rows: Sequence[DraftRows]) -> NDArray[np.int64]:
    """Arena rows of all of sequences' rows, ``[n_rows]``."""
    return np.concatenate([its.table.row_numbers(its.n_before, its.n_before + its.n_rows) for its in rows])
