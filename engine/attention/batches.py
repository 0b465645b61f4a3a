"""Attention of all sequences of a step together: the way of a GPU, where a launch costs more than what it computes.

The number of launches does not grow with the number of sequences. Neighbours of one kind form a batch:

* **Chains** (prompt chunks, roots without drafts, drafts that are chains) are causal: one call of a ragged flash
  kernel over all their keys.
* **Trees**: one such call without a mask over what every query of a sequence sees, its committed prefix. This step's
  own rows (and, behind a sliding window, the edge of the prefix that some queries no longer see) are scored in fp32
  under a mask, padded to the longest tree, and normalised together with the prefix, which enters the softmax as one
  more key whose score is its log-sum-exp. Long drafts that do not branch are chains here too, and trees that
  padding would make large are several batches.

Sequences in contiguous blocks are read in place, others gathered. What the device has to know is in the step's upload.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from engine.attention.ragged import Lengths, ragged
from engine.kv.arena import BlockTable, KVLayer
from engine.tree import BoolArray
from engine.upload import Upload, Uploaded

PADDED = 1 << 18  # scores of a head under the masks of a batch, its trees padded: 1 MB a head in fp32, several times
LONG_CHAIN = 64  # rows above which a chain among trees is worth a batch of its own


@dataclass(slots=True, frozen=True)
class Share:
    """One sequence's rows in a step: queries at ``n_cached + depths`` behind ``n_cached`` committed tokens."""

    n_cached: int
    depths: list[int]  # [n]
    visible: BoolArray | None  # [n, n] which query sees which, None for a chain
    is_chunk: bool  # of a prompt
    table: BlockTable


@dataclass(slots=True, frozen=True)
class _Keys:
    """Runs of key rows, one a sequence: in the arena, or in a copy gathered from it at every layer."""

    lengths: Lengths
    rows: Uploaded | None  # int64, of the copy

    @classmethod
    def of(cls, shares: Sequence[Share], firsts: list[int], lasts: list[int], upload: Upload) -> _Keys:
        """Slots ``firsts`` to ``lasts - 1`` of every sequence."""
        n_queries, n_keys = [len(share.depths) for share in shares], list(np.subtract(lasts, firsts).tolist())
        if shares[0].table.base is not None:
            starts = [share.table.row(first) for share, first in zip(shares, firsts, strict=True)]
            return cls(Lengths.of(n_queries, starts, n_keys, upload), None)
        rows = [share.table.row_numbers(a, b) for share, a, b in zip(shares, firsts, lasts, strict=True)]
        starts = [0, *np.cumsum(n_keys).tolist()[:-1]]
        return cls(Lengths.of(n_queries, starts, n_keys, upload), upload.add(np.concatenate(rows)))

    def read(self, layer: KVLayer) -> tuple[Tensor, Tensor]:
        """The keys and values that ``lengths`` points into, ``[n_rows, n_kv_heads, head_dim]``."""
        if self.rows is None:
            return layer.keys, layer.values
        return layer.keys.index_select(0, self.rows.tensor), layer.values.index_select(0, self.rows.tensor)


class Chains:
    """Sequences in which every query sees all rows before it."""

    def __init__(self, shares: Sequence[Share], windows: Iterable[int | None], upload: Upload) -> None:
        self.n_rows = sum(len(share.depths) for share in shares)
        self._is_single = all(len(share.depths) == 1 for share in shares)
        ends = [share.n_cached + len(share.depths) for share in shares]
        self._keys = {
            window: _Keys.of(shares, [_first(share, window) for share in shares], ends, upload) for window in windows
        }

    def attend(self, q: Tensor, own: tuple[Tensor, Tensor], layer: KVLayer, scale: float, window: int | None) -> Tensor:
        """``q`` ``[n_rows, n_heads, head_dim]`` -> output of that shape; ``own`` keys and values are in the layer."""
        keys = self._keys[window]
        reach = None if self._is_single else window  # a single query's run of keys begins where its window does
        return ragged(q, *keys.read(layer), keys.lengths, scale, causal=True, window=reach)[0]


@dataclass(slots=True)
class _TreeWindow:
    """What the trees of a batch read in layers of one window."""

    prefix: _Keys  # seen by all queries
    edge: Uploaded | None  # int64 [n * n_edge] arena rows that only some queries see, padded
    visible: Uploaded  # bool [n, 1, n_longest, n_edge + n_longest]
    mask: Tensor | None = None  # the same, additive; made by the first layer that asks


class Trees:
    """Sequences of which at least one is a tree that branches."""

    def __init__(self, shares: Sequence[Share], windows: Iterable[int | None], upload: Upload) -> None:
        counts = [len(share.depths) for share in shares]
        self.n_rows = sum(counts)
        self._n, self._longest = len(shares), max(counts)
        self._padded: Uploaded | None = None
        self._kept: Uploaded | None = None
        if min(counts) < self._longest:
            firsts = np.cumsum([0, *counts[:-1]])
            place = np.arange(self._longest)
            inside = place < np.array(counts)[:, None]
            self._padded = upload.add(np.where(inside, firsts[:, None] + place, firsts[:, None]).ravel())
            self._kept = upload.add(np.flatnonzero(inside))
        self._windows = {window: self._measure(shares, window, upload) for window in windows}

    def attend(self, q: Tensor, own: tuple[Tensor, Tensor], layer: KVLayer, scale: float, window: int | None) -> Tensor:
        """Like ``Chains.attend``; ``own`` keys and values ``[n_rows, n_kv_heads, head_dim]``."""
        seen = self._windows[window]
        if seen.mask is None:
            seen.mask = seen.visible.tensor.log()  # 0 and -inf
        prefix, lse = ragged(q, *seen.prefix.read(layer), seen.prefix.lengths, scale, causal=False, window=None)
        k, v = self._block(own[0], layer.keys, seen), self._block(own[1], layer.values, seen)
        n_heads, n_kv_heads, head_dim = q.shape[1], k.shape[1], q.shape[2]
        folded = self._pad(q).view(self._n, self._longest, n_kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        folded = _fp32(folded).reshape(self._n, n_kv_heads, -1, head_dim)
        scores = torch.matmul(folded, k.transpose(2, 3)).view(self._n, n_heads, self._longest, -1)
        beside = self._pad(lse.transpose(0, 1)).view(self._n, self._longest, n_heads, 1).transpose(1, 2)
        weights = torch.softmax(torch.cat((beside, torch.add(seen.mask, scores, alpha=scale)), dim=3), dim=3)
        block = torch.matmul(weights[..., 1:].reshape(*folded.shape[:3], -1), v)
        block = self._unpad(block.view(self._n, n_heads, self._longest, head_dim).transpose(1, 2))
        return torch.addcmul(block, prefix, self._unpad(weights[..., :1].transpose(1, 2))).to(q.dtype)

    def _block(self, own: Tensor, store: Tensor, seen: _TreeWindow) -> Tensor:
        """Keys, or values, under the mask: fp32 ``[n, n_kv_heads, n_edge + n_longest, head_dim]``."""
        block = self._pad(own).view(self._n, self._longest, *own.shape[1:])
        if seen.edge is not None:
            edge = store.index_select(0, seen.edge.tensor).view(self._n, -1, *own.shape[1:])
            block = torch.cat((edge, block), dim=1)
        return _fp32(block.transpose(1, 2))

    def _pad(self, rows: Tensor) -> Tensor:
        """``[n_rows, ..]`` -> ``[n * n_longest, ..]``; what is in the rows too many does not matter, but is finite."""
        return rows if self._padded is None else rows.index_select(0, self._padded.tensor)

    def _unpad(self, padded: Tensor) -> Tensor:
        """``[n, n_longest, ..]`` -> ``[n_rows, ..]``."""
        rows = padded.flatten(0, 1)
        return rows if self._kept is None else rows.index_select(0, self._kept.tensor)

    def _measure(self, shares: Sequence[Share], window: int | None, upload: Upload) -> _TreeWindow:
        firsts = [_first(share, window) for share in shares]
        common = [_first(share, window, max(share.depths)) for share in shares]
        prefix = _Keys.of(shares, common, [share.n_cached for share in shares], upload)
        n_edge = max(np.subtract(common, firsts).tolist())
        rows = np.zeros((self._n, n_edge), np.int64)
        visible = np.ones((self._n, 1, self._longest, n_edge + self._longest), np.bool_)
        for i, (share, first, last) in enumerate(zip(shares, firsts, common, strict=True)):
            rows[i] = share.table.row(first)
            rows[i, : last - first] = share.table.row_numbers(first, last)
            n = len(share.depths)
            visible[i, 0, :n] = _visible(share, first, last, window, n_edge, self._longest)
        return _TreeWindow(prefix, upload.add(rows.ravel()) if n_edge else None, upload.add(visible, np.bool_))


Batch = Chains | Trees


def make_batches(shares: Sequence[Share], windows: Iterable[int | None], upload: Upload) -> list[Batch]:
    """The batches of a step, in the order of its rows.

    Args:
        shares: all sequences, in the order of their rows.
        windows: the sliding windows of the layers that will ask, ``None`` for full attention.
        upload: of the step; batches are of use when it is sent.
    """
    are_chains = all(share.visible is None for share in shares)

    def kind(share: Share) -> tuple[bool, bool]:
        is_long = share.visible is None and len(share.depths) > LONG_CHAIN
        return are_chains or share.is_chunk or is_long, share.table.base is not None

    batches: list[Batch] = []
    for (is_chain, _), run in groupby(shares, kind):
        if is_chain:
            batches.append(Chains([*run], windows, upload))
        else:
            batches += [Trees(trees, windows, upload) for trees in _cut([*run])]
    return batches


def _cut(shares: Sequence[Share]) -> list[list[Share]]:
    """Trees in pieces of at most ``PADDED`` scores, and at least one tree."""
    pieces, longest = list[list[Share]](), 0
    for share in shares:
        n = len(share.depths)
        longest = max(longest, n)
        if not pieces or (len(pieces[-1]) + 1) * longest**2 > PADDED:
            pieces.append([])
            longest = n
        pieces[-1].append(share)
    return pieces


def attend_batches(
    batches: Sequence[Batch], q: Tensor, own: tuple[Tensor, Tensor], layer: KVLayer, scale: float, window: int | None
) -> Tensor:
    """Attention of all rows of a step.

    Args:
        batches: as ``make_batches`` made them.
        q: ``[1, n_heads, n_rows, head_dim]``.
        own: this step's keys and values, ``[1, n_kv_heads, n_rows, head_dim]``; they are in the layer already.
        layer: the layer's keys and values.
        scale: softmax scale.
        window: positions a query looks back over, itself included; ``None`` for all.

    Returns:
        ``[1, n_rows, n_heads, head_dim]``.
    """
    counts = [batch.n_rows for batch in batches]
    parts = zip(*(torch.split(x[0].transpose(0, 1), counts) for x in (q, *own)), strict=True)
    outs = [
        batch.attend(part, (k, v), layer, scale, window) for batch, (part, k, v) in zip(batches, parts, strict=True)
    ]
    return (outs[0] if len(outs) == 1 else torch.cat(outs)).unsqueeze(0)


def _first(share: Share, window: int | None, depth: int = 0) -> int:
    """The first committed slot that the query at ``depth`` sees; ``n_cached`` where it sees none."""
    return 0 if window is None else min(max(0, share.n_cached + depth - window + 1), share.n_cached)


def _visible(share: Share, first: int, last: int, window: int | None, n_edge: int, longest: int) -> BoolArray:
    """Which query of a sequence sees which slot of its edge and which of its own rows, ``[n, n_edge + longest]``."""
    n = len(share.depths)
    visible = np.zeros((n, n_edge + longest), np.bool_)
    visible[:, : last - first] = True
    visible[:, n_edge : n_edge + n] = np.tri(n, dtype=np.bool_) if share.visible is None else share.visible
    if window is not None:
        depths = np.array(share.depths)
        positions = np.zeros(n_edge + longest, np.int64)
        positions[: last - first] = np.arange(first, last) - share.n_cached
        positions[n_edge : n_edge + n] = depths
        visible &= depths[:, None] - positions < window
    return visible


def _fp32(x: Tensor) -> Tensor:
    """In rows one behind the other, as a matrix product wants them: converted and copied at once."""
    return x.to(torch.float32, memory_format=torch.contiguous_format)
