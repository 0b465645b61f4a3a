"""The attention function that Hugging Face layers call: writes keys and values, then attends.

Registered under ``NAME``. A stage passes its ``PackedStep`` as keyword argument ``packed`` through the layer, so no
modeling file is forked and no ``Cache`` object is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from engine.attention.segment import Run, Segment, attend_runs
from engine.device import is_host
from engine.kv.arena import KVArena, KVLayer
from engine.upload import Uploaded

NAME = "spectra"


@dataclass(slots=True)
class CapturedQuery:
    """Queries of chosen heads of one layer, kept until verification tells which row was the last accepted."""

    query: Tensor  # [n_chosen, rows, head_dim]
    n_heads: int  # query heads of the layer, chosen or not
    scale: float
    window: int | None


@dataclass(slots=True)
class PackedStep:
    """A step as the layers see it: all sequences' rows in one batch entry, ``[1, n_rows, ..]``."""

    arena: KVArena
    segments: list[Segment]  # none in a step that an executor runs
    write_start: int | None  # first arena row when all rows are contiguous
    write_rows: Uploaded | None  # int64 [n_rows] otherwise
    capture_heads: dict[int, list[int]] = field(default_factory=dict)  # local layer -> heads
    capture_index: dict[int, Uploaded] = field(default_factory=dict)  # the same, int64 [n_chosen]
    captured: dict[int, CapturedQuery] = field(default_factory=dict)  # filled by the hook
    _runs: dict[int | None, list[Run] | None] = field(default_factory=dict)  # see ``runs``

    def runs(self, window: int | None) -> list[Run] | None:
        """Arena rows that each segment reads, if every one is a single query.

        That is a plain decoding batch: it needs no masks, and the way there is half of its attention's time.
        """
        if window not in self._runs:
            found = [segment.run(window) for segment in self.segments]
            known = [run for run in found if run is not None]
            self._runs[window] = known if len(known) == len(found) else None
        return self._runs[window]

    def write(self, layer: int, key: Tensor, value: Tensor) -> KVLayer:
        """Put this step's keys and values, ``[1, n_kv_heads, n_rows, head_dim]``, in their rows."""
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
    """Ragged tree attention, sequence by sequence.

    ``query`` ``[1, n_heads, n_rows, head_dim]``, ``key`` and ``value`` ``[1, n_kv_heads, n_rows, head_dim]``, rotated;
    returns ``[1, n_rows, n_heads, head_dim]``. ``attention_mask`` is unused: segments know who sees whom.
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    store = packed.write(layer, key, value)
    heads = packed.capture_index.get(layer)
    if heads is not None:
        chosen = query[0].index_select(0, heads.tensor)
        packed.captured[layer] = CapturedQuery(chosen, query.shape[1], scaling, sliding_window)
    return attend(packed, query, store, scaling, sliding_window), None


def attend(packed: PackedStep, query: Tensor, store: KVLayer, scaling: float, sliding_window: int | None) -> Tensor:
    """Attention of all rows, in the shapes of ``tree_attention``; their keys and values are in ``store`` already."""
    segments = packed.segments
    if len(segments) == 1:
        return segments[0].attend(query, store, scaling, sliding_window)
    runs = packed.runs(sliding_window) if is_host(query.device) else None
    if runs is not None:
        return attend_runs(query, store, runs, scaling)
    parts = torch.split(query, [segment.n for segment in segments], dim=2)
    outs = [s.attend(part, store, scaling, sliding_window) for s, part in zip(segments, parts, strict=True)]
    return torch.cat(outs, dim=1)


AttentionInterface.register(NAME, tree_attention)
