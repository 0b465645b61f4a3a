"""Inner states of the target for PLD+ (arXiv 2412.01447): attention rows of chosen heads, and projected hidden states.

An attention row belongs to the position that predicted the bonus token. Fused kernels return no weights, so ``q . k``
is recomputed for the few heads that a speculator needs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from engine.attention.packed_step import PackedStep
from engine.device import Array, fetch, is_host
from engine.kv.arena import BlockTable
from engine.model.ranges import LayerRange
from engine.protocol import Needs
from engine.stage.packing import Span
from engine.step import StepResult, Work, WorkResult, encode
from engine.tree import FloatArray
from engine.upload import Upload
from engine.verify.walk import Walk

AttentionRows = dict[tuple[int, int], FloatArray]  # (sequence, place in its needs.heads) -> [n_positions]
PackedRows = list[tuple[int, int, bytes]]  # the same in a message, fp32
MAX_KEPT = 64  # steps; a pipeline has far fewer in flight, but rows of failed steps are never requested
EAGER_FETCH = 1 << 20  # values fetched before the accepted rows are known: 4 MB, faster than waiting twice
_SEED = 3  # the same everywhere, so that all states of a sequence get the same projection


class Captured(Protocol):
    """Data of a step from which attention rows are computed once verification has accepted nodes."""

    def rows(self, results: Sequence[WorkResult]) -> AttentionRows:
        """Rows of this stage's heads for every work that drew a token; ``results`` are those of the step's work."""


@dataclass(frozen=True, slots=True)
class CapturedWork:
    """One sequence's share of a captured step."""

    work: Work
    span: Span
    heads: Sequence[tuple[int, int]]  # (layer, head), as its needs list them, on any stage
    table: BlockTable


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """Implements ``Captured``; valid until the next step of its sequences, which writes to their blocks."""

    step: PackedStep
    layers: LayerRange
    works: Sequence[CapturedWork]

    @torch.inference_mode()
    def rows(self, results: Sequence[WorkResult]) -> AttentionRows:
        """See ``Captured.rows``."""
        asked = [pair for pair in zip(self.works, results, strict=True) if pair[0].heads and pair[1].tokens]
        kept = [kept_rows(captured.work, result.accepted) for captured, result in asked]
        upload = Upload(self.step.arena.layer(0).keys.device)
        rows = [
            upload.add([captured.table.row(captured.work.n_cached + row) for row in its])
            for (captured, _), its in zip(asked, kept, strict=True)
        ]
        upload.send()
        places: list[tuple[int, int]] = []
        weights: list[Tensor] = []
        for (captured, _), its, arena_rows in zip(asked, kept, rows, strict=True):
            places += self._weigh(captured, its[-1], arena_rows.tensor, weights)
        lines = (line for found in fetch(weights) for line in found)  # one copy from the device for all heads
        return dict(zip(places, lines, strict=True))

    def _weigh(self, captured: CapturedWork, last: int, kept: Tensor, weights: list[Tensor]) -> list[tuple[int, int]]:
        """Append one work's attention ``[n_heads, n_positions]`` to ``weights``; returns the keys of its rows.

        This is the attention of row ``last`` over all committed positions up to it; those of this step are at ``kept``.
        """
        work, table = captured.work, captured.table
        row = captured.span.first + last
        places: list[tuple[int, int]] = []
        for (layer, group), members in self._groups(captured.heads).items():
            taken = self.step.captured[layer]
            known = self.step.capture_heads[layer]
            query = taken.query[[known.index(captured.heads[place][1]) for place in members], row]
            keys = self.step.arena.layer(layer).keys[:, group]
            scores = torch.cat([part @ query.T for part in (_cached(keys, table, work.n_cached), keys[kept])]).float()
            scores *= taken.scale
            if taken.window is not None:
                scores[: max(0, len(scores) - taken.window)] = float("-inf")
            places += [(work.seq, place) for place in members]
            weights.append(torch.softmax(scores, dim=0).T)
        return places

    def _groups(self, heads: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
        """Places in ``heads`` by (local layer, key head), for the layers of this stage."""
        groups: dict[tuple[int, int], list[int]] = {}
        for place, (layer, head) in enumerate(heads):
            if layer in self.layers.numbers and head >= 0:
                local = layer - self.layers.first
                n_keys = self.step.arena.layer(local).keys.shape[1]
                groups.setdefault((local, head // (self.step.captured[local].n_heads // n_keys)), []).append(place)
        return groups


class KeptCaptures:
    """Captures of the newest steps, until their rows are requested. Any thread may call it."""

    def __init__(self) -> None:
        self._kept: dict[int, Captured] = {}  # step id -> capture, oldest first
        self._lock = threading.Lock()

    def keep(self, step_id: int, captured: Captured) -> None:
        """Keep the capture of a step until its rows are requested."""
        with self._lock:
            self._kept[step_id] = captured
            if len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]

    def clear(self) -> None:
        """Drop all captures."""
        with self._lock:
            self._kept.clear()

    def take_rows(self, asked: StepResult) -> AttentionRows | None:
        """Return a step's attention rows, and drop its capture and older ones; None: the step is not known."""
        with self._lock:
            captured = self._kept.get(asked.step_id)
            while captured is not None and next(iter(self._kept)) != asked.step_id:
                del self._kept[next(iter(self._kept))]  # requests come in order of the steps: earlier steps have failed
            self._kept.pop(asked.step_id, None)
        return None if captured is None else captured.rows(asked.results)


def _cached(keys: Tensor, table: BlockTable, n_cached: int) -> Tensor:
    """Keys ``[n_cached, head_dim]`` of the cached positions, a view where blocks are contiguous."""
    if table.base is not None:
        return keys[table.base : table.base + n_cached]
    return keys[table.rows(0, n_cached, keys.device)]


def kept_rows(work: Work, accepted: Sequence[int]) -> list[int]:
    """Rows of a work's span whose positions are committed: those of a chunk, or the root and the accepted nodes."""
    return list(range(len(work.tokens))) if work.tree is None else [0, *(node + 1 for node in accepted)]


def pack_rows(rows: AttentionRows) -> PackedRows:
    """Return attention rows for a message."""
    return [(seq, place, row.tobytes()) for (seq, place), row in rows.items()]


def unpack_rows(packed: PackedRows) -> AttentionRows:
    """Return what ``pack_rows`` packed."""
    return {(seq, place): np.frombuffer(row, dtype="<f4") for seq, place, row in packed}


def request_for_rows(step_id: int, results: Sequence[WorkResult]) -> bytes:
    """Return a step's result with the tokens and accepted nodes alone, which others need to compute their rows."""
    bare = [WorkResult(result.seq, result.tokens, result.accepted) for result in results]
    return encode(StepResult(step_id, bare, 0.0))


def attach_attention(result: WorkResult, rows: AttentionRows) -> WorkResult:
    """A result with its attention rows from all stages, in the order of the heads in its needs."""
    mine = [rows[key] for key in sorted(rows) if key[0] == result.seq]
    return msgspec.structs.replace(result, attention=np.stack(mine)) if mine else result


class StatesReadBack:
    """Reads hidden states of committed positions back, for all works of a step together.

    Args:
        works: of the step.
        needs: of every work.
        spans: its rows.
    """

    def __init__(self, works: Sequence[Work], needs: Sequence[Needs], spans: Sequence[Span]) -> None:
        self._works, self._needs, self._spans = works, needs, spans
        self._tapped: Tensor | None = None  # [n_rows, d], if any work asks
        self._is_fetched = False

    def begin(self, tapped: Tensor | None) -> list[Tensor]:
        """Return the tensors to fetch: the states of all rows if they are small, before the walks choose rows."""
        if tapped is not None and any(need.hidden_layer is not None for need in self._needs):
            self._tapped = tapped[0]
            self._is_fetched = is_host(tapped.device) or self._tapped.numel() <= EAGER_FETCH
        return [self._tapped.float()] if self._tapped is not None and self._is_fetched else []

    def finish(self, arrays: Iterator[Array], walks: Sequence[Walk]) -> list[FloatArray | None]:
        """Every work's states, fp32 ``[n_new_positions, d]``, where its needs ask for them.

        Waits for the device where ``begin`` left states there.
        """
        states_of: list[FloatArray | None] = [None] * len(self._works)
        if self._tapped is None:
            return states_of
        asked = [i for i, need in enumerate(self._needs) if need.hidden_layer is not None]
        kept = [[self._spans[i].first + row for row in kept_rows(self._works[i], walks[i].accepted)] for i in asked]
        if self._is_fetched:
            states = next(arrays)
        else:
            states = _fetch_rows(self._tapped, [row for rows in kept for row in rows])
            ends = np.cumsum([len(rows) for rows in kept]).tolist()
            kept = [list(range(end - len(rows), end)) for rows, end in zip(kept, ends, strict=True)]
        for i, rows in zip(asked, kept, strict=True):
            states_of[i] = project(torch.from_numpy(states[rows]), self._needs[i].hidden_dims).numpy()
        return states_of


def _fetch_rows(states: Tensor, rows: list[int]) -> FloatArray:
    """fp32 ``[len(rows), d]``."""
    upload = Upload(states.device)
    index = upload.add(rows)
    upload.send()
    return fetch([states.index_select(0, index.tensor).float()])[0]


def project(states: Tensor, dims: int) -> Tensor:
    """Project hidden states before they leave the stage: ``[.., d]`` -> fp32 ``[.., dims]``.

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


def local_tap(needs: Sequence[Needs], layers: LayerRange) -> int | None:
    """Local layer whose output any sequence needs (one layer per deployment)."""
    for need in needs:
        if need.hidden_layer is not None and layers.first <= need.hidden_layer < layers.last:
            return need.hidden_layer - layers.first
    return None


def tap_dims(needs: Sequence[Needs]) -> int:
    """Dimensions of the tapped states between stages; 0, all of them, where sequences of one step differ."""
    dims = {need.hidden_dims for need in needs if need.hidden_layer is not None}
    return dims.pop() if len(dims) == 1 else 0


def local_heads(needs: Sequence[Needs], layers: LayerRange) -> dict[int, list[int]]:
    """Heads whose attention rows any sequence needs, by local layer; a layer whose heads other ranks have has none."""
    heads_of: dict[int, set[int]] = {}
    for need in needs:
        for layer, head in need.heads:
            if layer in layers.numbers:
                heads_of.setdefault(layer - layers.first, set()).update([head] if head >= 0 else ())
    return {layer: sorted(heads) for layer, heads in heads_of.items()}
