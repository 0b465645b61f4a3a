"""A step as the layers see it, and the attention function that Hugging Face's layers call.

A stage passes its ``PackedStep`` as the keyword argument ``packed`` through each layer to ``tree_attention``, which
transformers finds under ``NAME``. So no modeling file is forked, and no ``Cache`` object is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from engine.attention.segment import Run, Segment, attend_runs
from engine.device import is_host
from engine.kv.arena import KVArena, KVLayer
from engine.upload import Upload, Uploaded

NAME = "spectra"


@dataclass(slots=True)
class CapturedQuery:
    """Queries of chosen heads of one layer, kept until verification says which row was accepted last."""

    query: Tensor  # [n_chosen, rows, head_dim]
    n_heads: int  # query heads of the layer, chosen or not
    scale: float
    window: int | None


@dataclass(slots=True)
class PackedStep:
    """A step in which the rows of all sequences are one batch entry, ``[1, n_rows, ..]``."""

    arena: KVArena
    segments: Sequence[Segment]  # none in a step that an executor runs
    write_start: int | None  # first arena row if all rows are contiguous
    write_rows: Uploaded | None  # int64 [n_rows] otherwise
    capture_heads: dict[int, list[int]] = field(default_factory=dict)  # local layer -> heads
    capture_index: dict[int, Uploaded] = field(default_factory=dict)  # the same, int64 [n_chosen]
    captured: dict[int, CapturedQuery] = field(default_factory=dict)  # filled by the attention function
    _runs: dict[int | None, list[Run] | None] = field(default_factory=dict)  # see ``runs``

    @classmethod
    def of(cls, segments: Sequence[Segment], arena: KVArena, upload: Upload) -> PackedStep:
        """Return the step of these segments; it can run once ``upload`` is sent."""
        [first, *others] = segments
        if not others and first.table.base is not None:
            return cls(arena, segments, first.table.row(first.n_cached), None)
        rows = [one.table.row_numbers(one.n_cached, one.n_cached + one.n) for one in segments]
        return cls(arena, segments, None, upload.add(np.concatenate(rows)))

    def runs(self, window: int | None) -> list[Run] | None:
        """Return the arena rows that each segment reads if every segment is a single query, else None.

        Such a step of plain decoding needs no masks, which halves the time of its attention.
        """
        if window not in self._runs:
            found = [segment.run(window) for segment in self.segments]
            known = [run for run in found if run is not None]
            self._runs[window] = known if len(known) == len(found) else None
        return self._runs[window]

    def write(self, layer: int, key: Tensor, value: Tensor) -> KVLayer:
        """Write this step's keys and values, ``[1, n_kv_heads, n_rows, head_dim]``, and return the layer's cache."""
        store = self.arena.layer(layer)
        keys, values = store.keys, store.values
        if self.write_start is not None:
            end = self.write_start + key.shape[2]
            keys[self.write_start : end] = key[0].transpose(0, 1)
            values[self.write_start : end] = value[0].transpose(0, 1)
        else:
            assert self.write_rows is not None
            keys.index_copy_(0, self.write_rows.tensor, key[0].transpose(0, 1))
            values.index_copy_(0, self.write_rows.tensor, value[0].transpose(0, 1))
        return store

    def attend(self, query: Tensor, store: KVLayer, scaling: float, sliding_window: int | None) -> Tensor:
        """Return the attention of all rows, in the shapes of ``tree_attention``; ``store`` already has their keys."""
        segments = self.segments
        if len(segments) == 1:
            return segments[0].attend(query, store, scaling, sliding_window)
        runs = self.runs(sliding_window) if is_host(query.device) else None
        if runs is not None:
            return attend_runs(query, store, runs, scaling)
        parts = torch.split(query, [segment.n for segment in segments], dim=2)
        outs = [s.attend(part, store, scaling, sliding_window) for s, part in zip(segments, parts, strict=True)]
        return torch.cat(outs, dim=1)


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    packed: PackedStep,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Write keys and values, then return the attention of every sequence's rows, ``[1, n_rows, n_heads, head_dim]``.

    Args:
        module: the attention module of a layer.
        query: rotated, ``[1, n_heads, n_rows, head_dim]``.
        key: rotated, ``[1, n_kv_heads, n_rows, head_dim]``.
        value: like ``key``.
        attention_mask: unused: the segments of ``packed`` know which row sees which.
        scaling: softmax scale.
        packed: the step.
        sliding_window: positions that a row looks back over, itself included; None: all.
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    store = packed.write(layer, key, value)
    heads = packed.capture_index.get(layer)
    if heads is not None:
        chosen = query[0].index_select(0, heads.tensor)
        packed.captured[layer] = CapturedQuery(chosen, query.shape[1], scaling, sliding_window)
    return packed.attend(query, store, scaling, sliding_window), None


AttentionInterface.register(NAME, tree_attention)
