"""Attention of one sequence's queries in a packed step, by torch's kernels.

Queries follow ``n_cached`` committed tokens: a chunk of a prompt (a chain), or the root and its tree. Windows of
sliding layers are computed on *positions*, never on cache slots: several nodes of a tree can have the same position.
A GPU comes here where no executor (``engine.cuda``) runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.device import is_host
from engine.kv.arena import BlockTable, KVLayer
from engine.tree import BoolArray

# Below this many prefix keys one masked call beats two calls and a merge on a CPU (docs/decisions, 4).
SPLIT_FROM = 1024

_CPU_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

Run = tuple[int, int] | Tensor  # arena rows: the first and their number, or int64 [n] where they are not contiguous


@dataclass(slots=True, frozen=True)
class _WindowView:
    """Keys that a layer with some sliding window reads; made once per step and shared by all such layers."""

    first: int  # first slot that any query sees
    common: int  # every query sees the slots from this one to n_cached
    mask: Tensor | None  # additive, over the masked keys, [groups * n, n_keys]
    split: bool  # attend to the common slots without a mask and merge; otherwise make one masked call


class Segment:
    """Queries of one sequence in a step.

    Args:
        n_cached: committed tokens in the cache.
        depths: position of each query relative to ``n_cached``, ``[n]``.
        visible: which query sees which, ``[n, n]``; None: a chain, in which each sees itself and those before it.
        table: the sequence's blocks, with a slot for every committed token and query.
    """

    def __init__(self, n_cached: int, depths: Sequence[int], visible: BoolArray | None, table: BlockTable) -> None:
        self.n = len(depths)
        self.n_cached = n_cached
        self.depths = depths
        self.visible = visible
        self.table = table
        self._views: dict[int | None, _WindowView] = {}
        self._rows: Tensor | None = None

    def attend(self, q: Tensor, layer: KVLayer, scale: float, window: int | None) -> Tensor:
        """Return the attention of these queries, ``[1, n, n_heads, head_dim]``.

        Args:
            q: ``[1, n_heads, n, head_dim]``.
            layer: the layer's keys and values; those of this step are already written.
            scale: softmax scale.
            window: positions that a query looks back over, itself included; None: all.
        """
        _, n_heads, n, head_dim = q.shape
        k, v = layer.read_keys, layer.read_values
        folded = q.reshape(1, k.shape[1], -1, head_dim)  # the query heads of a key head follow each other
        view = self._views.get(window) or self._make_view(window, q, n_heads // k.shape[1])
        end = self.n_cached + n
        if view.split:
            prefix = self._keys(k, view.common, self.n_cached), self._keys(v, view.common, self.n_cached)
            block = self._block(k, view), self._block(v, view)
            parts = block_attention(folded, *prefix, None, scale), block_attention(folded, *block, view.mask, scale)
            out = merge(*parts[0], *parts[1])
        elif is_host(q.device):
            out, _ = block_attention(
                folded, self._keys(k, view.first, end), self._keys(v, view.first, end), view.mask, scale
            )
        else:
            keys, values = self._keys(k, view.first, end), self._keys(v, view.first, end)
            out = scaled_dot_product_attention(folded, keys, values, attn_mask=view.mask, scale=scale)
        return out.reshape(1, n_heads, n, head_dim).transpose(1, 2)

    def run(self, window: int | None) -> Run | None:
        """Return where all keys are if this is a single query, else None."""
        if self.n != 1:
            return None
        base, end = self.table.base, self.n_cached + 1
        first = 0 if window is None else max(0, end - window)
        if base is None:
            return self.table.rows(first, end, torch.device("cpu"))
        return base + first, end - first

    def _keys(self, store: Tensor, first: int, last: int) -> Tensor:
        """Return ``[1, n_kv_heads, last - first, head_dim]``: a view where the blocks are contiguous, else a copy."""
        base = self.table.base
        if base is not None:
            return store.narrow(2, base + first, last - first)
        if self._rows is None:
            self._rows = self.table.rows(0, self.n_cached + self.n, store.device)
        return store.index_select(2, self._rows[first:last])

    def _block(self, store: Tensor, view: _WindowView) -> Tensor:
        """Return the keys under the mask: slots that only some queries see, then this step's own."""
        own = self._keys(store, self.n_cached, self.n_cached + self.n)
        if view.first == view.common:
            return own
        return torch.cat((self._keys(store, view.first, view.common), own), dim=2)

    def _make_view(self, window: int | None, q: Tensor, groups: int) -> _WindowView:
        n, cached = self.n, self.n_cached
        first = common = 0
        if window is not None:
            first = min(max(0, cached + min(self.depths) - window + 1), cached)
            common = min(max(0, cached + max(self.depths) - window + 1), cached)
        if n == 1:
            view = _WindowView(first, first, None, split=False)
        else:
            split = is_host(q.device) and cached - common >= SPLIT_FROM
            visible = self._visible_keys(range(first, common if split else cached), window)
            mask = torch.zeros(visible.shape, dtype=q.dtype).masked_fill_(~visible, float("-inf"))
            view = _WindowView(first, common, mask.repeat(groups, 1).to(q.device), split)
        self._views[window] = view
        return view

    def _visible_keys(self, slots: range, window: int | None) -> Tensor:
        """Return which query sees which of the cached ``slots`` and of this step's rows, ``[n, n_slots + n]``."""
        if self.visible is None:
            own = torch.ones(self.n, self.n, dtype=torch.bool).tril_()
        else:
            own = torch.from_numpy(self.visible)
        visible = torch.cat((torch.ones(self.n, len(slots), dtype=torch.bool), own), dim=1)
        if window is not None:
            depths = torch.tensor(self.depths)
            positions = torch.cat((torch.tensor(slots, dtype=torch.int64) - self.n_cached, depths))
            visible &= (depths[:, None] - positions) < window
        return visible


def block_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Attend to one block of keys by the CPU's fused kernel.

    Args:
        q: ``[1, n_kv_heads, n_q, head_dim]``; the query heads of a key head are folded into ``n_q``.
        k: ``[1, n_kv_heads, n_k, head_dim]``.
        v: like ``k``.
        mask: additive, ``[n_q, n_k]``, of the dtype of ``q``; leaves every query at least one key.
        scale: softmax scale.

    Returns:
        The output like ``q``, and its log-sum-exp, fp32 ``[1, n_kv_heads, n_q]``.
    """
    out, lse = _CPU_FLASH(q, k, v, attn_mask=mask, scale=scale)
    return out, lse


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Tensor:
    """Return attention over the union of two disjoint blocks of keys, from each one's output and log-sum-exp."""
    weight = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    return torch.lerp(out_a.float(), out_b.float(), weight).to(out_a.dtype)


def attend_runs(q: Tensor, layer: KVLayer, runs: list[Run], scale: float) -> Tensor:
    """Return the attention of single queries on a CPU, ``[1, n, n_heads, head_dim]``, without masks.

    Args:
        q: ``[1, n_heads, n, head_dim]``, one query per run.
        layer: the layer's keys and values.
        runs: arena rows that each query sees, ``[n]``.
        scale: softmax scale.
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
