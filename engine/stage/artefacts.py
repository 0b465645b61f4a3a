"""Attention rows of chosen heads for the position that predicted the bonus token (PLD+, arXiv 2412.01447).

Fused kernels return no weights, so ``q . k`` is recomputed, for the few heads that were asked for only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.hook import PackedStep
from engine.kv.table import BlockTable
from engine.model.ranges import LayerRange
from engine.stage.packing import Span
from engine.step import Work, WorkResult
from engine.tree import FloatArray

AttentionRows = dict[tuple[int, int], FloatArray]  # (sequence, place in its needs.heads) -> [n_positions]


@dataclass(frozen=True, slots=True)
class CapturedWork:
    """One sequence's share of a captured step."""

    work: Work
    span: Span
    heads: Sequence[tuple[int, int]]  # its needs', (layer, head), of any stage
    table: BlockTable


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """What a stage keeps of a step until verification tells which row of every tree was the last accepted.

    Good until the blocks of its sequences are written to again, that is until their next step.
    """

    step: PackedStep
    layers: LayerRange
    works: Sequence[CapturedWork]

    @torch.inference_mode()
    def rows(self, results: Sequence[WorkResult]) -> AttentionRows:
        """Rows of this stage's heads for every work that drew a token; ``results`` are those of the step's work."""
        rows: AttentionRows = {}
        for captured, result in zip(self.works, results, strict=True):
            if captured.heads and result.tokens:
                rows |= self._rows(captured, result)
        return rows

    def _rows(self, captured: CapturedWork, result: WorkResult) -> AttentionRows:
        """Rows over all committed positions up to the last forwarded one."""
        work, table = captured.work, captured.table
        kept = [0, *(node + 1 for node in result.accepted)] if work.tree is not None else list(range(len(work.tokens)))
        row = captured.span.first + kept[-1]
        places: list[int] = []
        weights: list[Tensor] = []
        for (layer, group), members in self._groups(captured.heads).items():
            taken = self.step.captured[layer]
            known = self.step.capture_heads[layer]
            query = taken.query[[known.index(captured.heads[place][1]) for place in members], row]
            keys = self.step.arena.layer(layer).keys[:, group]
            scores = torch.cat([part @ query.T for part in _parts(keys, table, work.n_cached, kept)]).float()
            scores *= taken.scale
            if taken.window is not None:
                scores[: max(0, len(scores) - taken.window)] = float("-inf")
            places += members
            weights.append(torch.softmax(scores, dim=0).T)
        if not places:
            return {}
        found = torch.cat(weights).cpu().numpy()  # one copy from the device, however many heads
        return {(work.seq, place): found[i] for i, place in enumerate(places)}

    def _groups(self, heads: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
        """Places in ``heads`` by (local layer, key head), for the layers of this stage."""
        groups: dict[tuple[int, int], list[int]] = {}
        for place, (layer, head) in enumerate(heads):
            if self.layers.first <= layer < self.layers.last:
                local = layer - self.layers.first
                n_keys = self.step.arena.layer(local).keys.shape[1]
                groups.setdefault((local, head // (self.step.captured[local].n_heads // n_keys)), []).append(place)
        return groups


def _parts(keys: Tensor, table: BlockTable, n_cached: int, kept: list[int]) -> tuple[Tensor, Tensor]:
    """Keys ``[rows, head_dim]`` of the cached positions (a view where blocks are contiguous) and of the kept rows."""
    if table.base is not None:
        cached = keys[table.base : table.base + n_cached]
    else:
        cached = keys[table.rows(0, n_cached, keys.device)]
    return cached, keys[torch.tensor([table.row(n_cached + row) for row in kept], device=keys.device)]
