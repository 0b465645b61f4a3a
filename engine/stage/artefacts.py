"""Inner states of the target for PLD+ (arXiv 2412.01447): attention rows of chosen heads, and projected hidden states.

An attention row belongs to the position that predicted the bonus token. Fused kernels return no weights, so ``q . k``
is recomputed, only for the few heads that a speculator asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
import torch
from torch import Tensor

from engine.attention.hook import PackedStep
from engine.kv.arena import BlockTable
from engine.model.ranges import LayerRange
from engine.stage.packing import Span
from engine.step import Work, WorkResult
from engine.tree import FloatArray

AttentionRows = dict[tuple[int, int], FloatArray]  # (sequence, place in its needs.heads) -> [n_positions]
_SEED = 3  # any; the same everywhere, so that all states of a sequence are projected alike


@dataclass(frozen=True, slots=True)
class CapturedWork:
    """One sequence's share of a captured step."""

    work: Work
    span: Span
    heads: Sequence[tuple[int, int]]  # (layer, head), as its needs list them, on any stage
    table: BlockTable


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """What a stage keeps of a step until verification tells which row of every tree was the last accepted.

    Valid until the blocks of its sequences are written to again, that is until their next step.
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


def attach_attention(result: WorkResult, rows: AttentionRows) -> WorkResult:
    """A result with its attention rows, in the order in which the needs list the heads, whatever stage they are on."""
    mine = [rows[key] for key in sorted(rows) if key[0] == result.seq]
    return msgspec.structs.replace(result, attention=np.stack(mine)) if mine else result


def project(states: Tensor, dims: int) -> Tensor:
    """Hidden states made smaller before they travel: ``[.., d]`` -> fp32 ``[.., dims]``.

    A fixed random matrix keeps their cosines (Johnson-Lindenstrauss): two unit vectors at cosine ``c`` are afterwards
    at ``c`` within about ``(1 - c^2) / sqrt(dims)``. The states stay as they are when ``dims`` is 0 or not below ``d``.
    """
    if not 0 < dims < states.shape[-1]:
        return states
    projected: Tensor = states.float() @ _matrix(states.shape[-1], dims, states.device)
    return projected


@lru_cache(maxsize=8)
def _matrix(d: int, dims: int, device: torch.device) -> Tensor:
    """fp32 ``[d, dims]``, drawn on the CPU so that every device has the same."""
    drawn = torch.randn(d, dims, generator=torch.Generator().manual_seed(_SEED))
    scaled: Tensor = drawn / dims**0.5
    return scaled.to(device)
