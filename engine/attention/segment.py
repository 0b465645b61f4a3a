"""One sequence's share of a packed step: which keys its queries see, and how they are laid out.

Queries follow ``n_cached`` committed tokens: a chunk of prompt (a chain), or the root and its tree. Windows of
sliding layers are computed on *positions*, never on cache slots: a tree has several nodes at one position. A GPU comes
here for the oracle only, and where no executor (``engine.cuda``) can run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.kernels import block_attention, masked_attention, math_attention, merge
from engine.device import is_host
from engine.kv.arena import BlockTable, KVLayer
from engine.tree import BoolArray

# Below this many prefix keys one masked call beats two calls and a merge on a CPU (docs/decisions.md, 4).
SPLIT_FROM = 1024

Run = tuple[int, int] | Tensor  # arena rows: the first and how many, or int64 [n] where they do not follow each other


@dataclass(slots=True, frozen=True)
class _Window:
    """What a layer with a given sliding window reads; made once per step, used by all such layers."""

    first: int  # first slot any query sees
    common: int  # from this slot on to n_cached every query sees every key
    mask: Tensor | None  # [groups * n, n_keys] additive, over the masked keys
    split: bool  # prefix unmasked and merged, or one masked call


class Segment:
    """Attention of ``n`` queries of one sequence.

    Args:
        first_row: where the queries start in the packed step.
        n_cached: committed tokens already in the cache.
        depths: position of each query relative to ``n_cached``, ``[n]``.
        visible: ``[n, n]`` which query sees which, ``None`` for a chain.
        table: the sequence's blocks, already grown to ``n_cached + n`` slots.
        groups: query heads per key head.
        reference: dense masks and plain matrix products throughout: the oracle of the fast path.
    """

    def __init__(
        self,
        first_row: int,
        n_cached: int,
        depths: list[int],
        visible: BoolArray | None,
        table: BlockTable,
        groups: int,
        reference: bool = False,
    ) -> None:
        self.first_row = first_row
        self.n = len(depths)
        self.n_cached = n_cached
        self.depths = depths
        self._visible = visible
        self._table = table
        self._groups = groups
        self._reference = reference
        self._windows: dict[int | None, _Window] = {}
        self._rows: Tensor | None = None

    def attend(self, q: Tensor, layer: KVLayer, scale: float, window: int | None) -> Tensor:
        """Attention output of this segment's queries.

        Args:
            q: ``[1, n_heads, n, head_dim]``.
            layer: the layer's keys and values; this step's are already written.
            scale: softmax scale.
            window: positions a query looks back over, itself included; ``None`` for all.

        Returns:
            ``[1, n, n_heads, head_dim]``.
        """
        _, n_heads, n, head_dim = q.shape
        seen = self._windows.get(window) or self._make_window(window, q)
        folded = q.reshape(1, n_heads // self._groups, self._groups * n, head_dim)
        end = self.n_cached + n
        k, v = layer.read_keys, layer.read_values
        kernel = math_attention if self._reference else block_attention
        if not seen.split:
            given = (folded, self._keys(k, seen.first, end), self._keys(v, seen.first, end), seen.mask, scale)
            out = kernel(*given)[0] if self._reference or is_host(q.device) else masked_attention(*given)
        else:
            prefix = (self._keys(k, seen.common, self.n_cached), self._keys(v, seen.common, self.n_cached))
            block = (self._block(k, seen), self._block(v, seen))
            out = merge(*kernel(folded, *prefix, None, scale), *kernel(folded, *block, seen.mask, scale))
        return out.reshape(1, n_heads, n, head_dim).transpose(1, 2)

    def run(self, window: int | None) -> Run | None:
        """Where all keys lie, if this is a single query; else None."""
        if self.n != 1 or self._reference:
            return None
        base, end = self._table.base, self.n_cached + 1
        first = 0 if window is None else max(0, end - window)
        if base is None:
            return self._table.rows(first, end, torch.device("cpu"))
        return base + first, end - first

    def _keys(self, store: Tensor, first: int, last: int) -> Tensor:
        """``[1, n_kv_heads, last - first, head_dim]``: a view when the blocks are contiguous, else a gather."""
        base = self._table.base
        if base is not None:
            return store.narrow(2, base + first, last - first)
        if self._rows is None:
            self._rows = self._table.rows(0, self.n_cached + self.n, store.device)
        return store.index_select(2, self._rows[first:last])

    def _block(self, store: Tensor, seen: _Window) -> Tensor:
        """Keys of the masked block: the window's ragged edge, if any, then this step's own."""
        own = self._keys(store, self.n_cached, self.n_cached + self.n)
        if seen.first == seen.common:
            return own
        return torch.cat((self._keys(store, seen.first, seen.common), own), dim=2)

    def _make_window(self, window: int | None, q: Tensor) -> _Window:
        seen = self._windows[window] = self._measure(window, q)
        return seen

    def _measure(self, window: int | None, q: Tensor) -> _Window:
        n, cached = self.n, self.n_cached
        first = common = 0
        if window is not None:
            first = min(max(0, cached + min(self.depths) - window + 1), cached)
            common = min(max(0, cached + max(self.depths) - window + 1), cached)
        if n == 1 and not self._reference:
            return _Window(first, first, None, split=False)
        split = not self._reference and is_host(q.device) and cached - common >= SPLIT_FROM
        slots = [*range(first, common if split else cached)]
        visible = self._visible_keys(slots, window)
        mask = torch.zeros(visible.shape, dtype=q.dtype).masked_fill_(~visible, float("-inf"))
        return _Window(first, common, mask.repeat(self._groups, 1).to(q.device), split)

    def _visible_keys(self, slots: list[int], window: int | None) -> Tensor:
        """Which query sees which of the cached ``slots`` and of this step's own rows, bool ``[n, n_slots + n]``."""
        own = torch.from_numpy(self._visible) if self._visible is not None else None
        if own is None:
            own = torch.ones(self.n, self.n, dtype=torch.bool).tril_()
        visible = torch.cat((torch.ones(self.n, len(slots), dtype=torch.bool), own), dim=1)
        if window is not None:
            depths = torch.tensor(self.depths)
            positions = torch.cat((torch.tensor(slots, dtype=torch.int64) - self.n_cached, depths))
            visible &= (depths[:, None] - positions) < window
        return visible


def attend_runs(q: Tensor, layer: KVLayer, runs: list[Run], scale: float) -> Tensor:
    """Attention of single queries on a CPU, each over one run of arena rows, or over rows that are gathered.

    Args:
        q: ``[1, n_heads, n, head_dim]``, one query per run.
        layer: the layer's keys and values.
        runs: of every query, ``[n]``.
        scale: softmax scale.

    Returns:
        ``[1, n, n_heads, head_dim]``.
    """
    _, n_heads, n, head_dim = q.shape
    keys, values = layer.read_keys, layer.read_values
    n_kv_heads = keys.shape[1]
    folded = q.transpose(1, 2).reshape(n, n_kv_heads, n_heads // n_kv_heads, head_dim)
    outs = [
        block_attention(one, _read(keys, run), _read(values, run), None, scale)[0]
        for one, run in zip(torch.split(folded, 1), runs, strict=True)
    ]
    return torch.cat(outs).reshape(1, n, n_heads, head_dim)


def _read(store: Tensor, run: Run) -> Tensor:
    return store.narrow(2, *run) if isinstance(run, tuple) else store.index_select(2, run)
