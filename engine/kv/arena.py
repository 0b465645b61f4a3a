"""The KV cache of one stage: one tensor, allocated once under a fixed memory budget, addressed by arena rows.

A *slot* is a position within one sequence's cache (committed tokens first, then the tree of the current step). A *row*
is its place in the arena: ``row = table[slot // block_size] * block_size + slot % block_size``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PIECE = 1024  # rows copied at once


class ArenaMove(NamedTuple):
    """Rows that are copied together; source and target do not overlap."""

    source: int  # first row
    target: int
    n: int  # rows


@dataclass(slots=True, frozen=True)
class KVLayer:
    """One layer's share of the arena as ready-made views: making a view takes longer than using it."""

    keys: Tensor  # [n_rows, n_kv_heads, head_dim], for writing
    values: Tensor
    read_keys: Tensor  # [1, n_kv_heads, n_rows, head_dim], the same memory, for attention
    read_values: Tensor

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> KVLayer:
        """Return the views of ``keys`` and ``values`` ``[n_rows, n_kv_heads, head_dim]``."""
        return cls(keys, values, keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0))


class KVArena:
    """Keys and values of ``n_layers`` layers for all sequences.

    Shape ``[n_layers, 2, n_blocks * block_size, n_kv_heads, head_dim]``: a token's heads are adjacent, so a token is
    written by one copy, and a paged kernel can use the same memory as ``[n_blocks, block_size, ..]``.
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
        self._layers = [KVLayer.of(self._data[layer, 0], self._data[layer, 1]) for layer in range(n_layers)]

    def layer(self, layer: int) -> KVLayer:
        return self._layers[layer]

    @property
    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """Views of all layers, ``[n_layers, n_rows, n_kv_heads, head_dim]`` each."""
        return self._data[:, 0], self._data[:, 1]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy rows in all layers at once: accepted paths of a step become committed context.

        Sources are read before any target is written. Both are int64 ``[n]``, on the arena's device.
        """
        self._data.index_copy_(2, target, self._data.index_select(2, source))

    def move_runs(self, runs: Iterable[ArenaMove]) -> None:
        """Copy runs of rows in all layers, one after the other, without extra memory."""
        for run in runs:
            self._data.narrow(2, run.target, run.n).copy_(self._data.narrow(2, run.source, run.n))

    def copy(self, source: Tensor, target: Tensor, is_apart: bool) -> None:
        """Copy many rows as ``move`` does, but piece by piece to need little memory.

        If a row is both read and written (``is_apart`` is false), the copy is made in one piece.
        """
        size = PIECE if is_apart else max(1, len(source))
        for piece, to in zip(torch.split(source, size), torch.split(target, size), strict=True):
            self.move(piece, to)


class BlockTable:
    """Blocks of one sequence in text order; remembers whether they are one contiguous run."""

    __slots__ = ("_array", "base", "block_size", "blocks")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: list[int] = []
        self.base: int | None = None  # row of slot 0 while the run is contiguous
        self._array: NDArray[np.int32] | None = None  # of ``blocks``, once asked for

    @property
    def block_array(self) -> NDArray[np.int32]:
        """``blocks`` as a read-only array, ``[n_blocks]``."""
        if self._array is None or len(self._array) != len(self.blocks):
            self._array = np.array(self.blocks, np.int32)
        return self._array

    def extend(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if not self.blocks:
                self.base = block * self.block_size
            elif block != self.blocks[-1] + 1:
                self.base = None
            self.blocks.append(block)

    def replace(self, blocks: Sequence[int]) -> None:
        """Replace all blocks of the sequence by at least as many others."""
        self.blocks, self.base, self._array = [], None, None
        self.extend(blocks)

    def runs_to(self, blocks: Sequence[int]) -> list[ArenaMove]:
        """Return the runs of rows to copy when ``blocks``, at least as many, replace the blocks of this table."""
        size, runs = self.block_size, list[ArenaMove]()
        for old, new in zip(self.blocks, blocks, strict=False):
            last = runs[-1] if runs else ArenaMove(0, 0, 0)
            if old == new:
                continue
            if last.n and (last.source + last.n, last.target + last.n) == (old * size, new * size):
                runs[-1] = last._replace(n=last.n + size)
            else:
                runs.append(ArenaMove(old * size, new * size, size))
        return runs

    def row(self, slot: int) -> int:
        if self.base is not None:
            return self.base + slot
        return self.blocks[slot // self.block_size] * self.block_size + slot % self.block_size

    def row_numbers(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the arena rows of slots ``first`` to ``last - 1``, ``[last - first]``."""
        if self.base is not None:
            return np.arange(self.base + first, self.base + last)
        slots = np.arange(first, last)
        return np.asarray(self.blocks)[slots // self.block_size] * self.block_size + slots % self.block_size

    def rows(self, first: int, last: int, device: torch.device) -> Tensor:
        """Return ``row_numbers`` as a tensor on a device."""
        return torch.from_numpy(self.row_numbers(first, last)).to(device)
