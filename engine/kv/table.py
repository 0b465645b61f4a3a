"""A stage's view of one sequence's blocks: slot to arena row."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class BlockTable:
    """Blocks of one sequence in text order; remembers whether they are one contiguous run."""

    __slots__ = ("base", "block_size", "blocks")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: list[int] = []
        self.base: int | None = None  # row of slot 0 while the run is contiguous

    def extend(self, blocks: Iterable[int]) -> None:
        """Append newly allocated blocks."""
        for block in blocks:
            if not self.blocks:
                self.base = block * self.block_size
            elif block != self.blocks[-1] + 1:
                self.base = None
            self.blocks.append(block)

    @property
    def n_slots(self) -> int:
        """Tokens the table can hold."""
        return len(self.blocks) * self.block_size

    def row(self, slot: int) -> int:
        """Arena row of a slot."""
        if self.base is not None:
            return self.base + slot
        return self.blocks[slot // self.block_size] * self.block_size + slot % self.block_size

    def rows(self, first: int, last: int, device: torch.device) -> Tensor:
        """Arena rows of slots ``first`` to ``last - 1``, int64 ``[last - first]``."""
        if self.base is not None:
            return torch.arange(self.base + first, self.base + last, device=device)
        slots = torch.arange(first, last)
        blocks = torch.tensor(self.blocks)
        return (blocks[slots // self.block_size] * self.block_size + slots % self.block_size).to(device)
