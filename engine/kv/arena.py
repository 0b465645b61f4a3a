"""The KV cache of one stage: one tensor, preallocated under a fixed memory budget, addressed by arena rows.

A *slot* is a position within one sequence's cache (committed tokens first, the tree of the current step behind
them); a *row* is where it lies in the arena: ``row = table[slot // block_size] * block_size + slot % block_size``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVArena:
    """Keys and values of ``n_layers`` layers for all sequences.

    Shape ``[n_layers, 2, n_blocks * block_size, n_kv_heads, head_dim]``: a token's heads lie together, so that
    writing is one copy per token and a paged kernel can use the same memory as ``[n_blocks, block_size, ..]``.
    """

    def __init__(
        self,
        n_layers: int,
        n_blocks: int,
        block_size: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.n_rows = n_blocks * block_size
        self._data = torch.zeros(n_layers, 2, self.n_rows, n_kv_heads, head_dim, dtype=dtype, device=device)
        # Indexing costs more than the copy it leads to: one view per layer, made once.
        self._keys = [self._data[layer, 0] for layer in range(n_layers)]
        self._values = [self._data[layer, 1] for layer in range(n_layers)]

    @staticmethod
    def bytes_per_block(n_layers: int, block_size: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes one block takes over all layers of a stage."""
        return n_layers * 2 * block_size * n_kv_heads * head_dim * dtype.itemsize

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, ``[n_rows, n_kv_heads, head_dim]`` each."""
        return self._keys[layer], self._values[layer]

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy rows over all layers at once: how the accepted paths of a step become committed context.

        O(rows moved); sources are read before any target is written.
        """
        if source:
            device = self._data.device
            rows = self._data.index_select(2, torch.tensor(source, device=device))
            self._data.index_copy_(2, torch.tensor(target, device=device), rows)
