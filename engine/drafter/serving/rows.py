"""Rows of a drafter's forward: what they see, however that is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from engine.attention.segment import Segment
from engine.kv.arena import BlockTable
from engine.tree import ROOT


@dataclass(frozen=True)
class DraftRows:
    """One sequence's rows after those that are in the cache.

    Args:
        table: of the sequence; row ``i`` has the slot ``n_before + i``.
        n_before: rows in the cache, all of which every row sees.
        n_rows: rows; the positions of a chain's or a block's follow each other.
        parents: of every row, ``[n_rows]``, ``ROOT`` being the last row in the cache; a row sees its ancestors. None: a
            chain, in which a row sees those before it.
        n_run: the first so many were run in an earlier forward of the same draft, and are in the cache, too.
        is_block: of a chain that every row sees all rows, later ones too.
    """

    table: BlockTable
    n_before: int
    n_rows: int
    parents: Sequence[int] | None = None
    n_run: int = 0
    is_block: bool = False

    @cached_property
    def depths(self) -> list[int]:
        """Of every row, how many positions it comes after the first one."""
        if self.parents is None:
            return list(range(self.n_rows))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return depths

    @property
    def positions(self) -> list[int]:
        """Of the rows that are to be run."""
        return [self.n_before + depth for depth in self.depths[self.n_run :]]

    def segment(self) -> Segment:
        """For attention under masks."""
        visible = None
        if self.parents is not None:
            visible = np.eye(self.n_rows, dtype=np.bool_)
            for row, parent in enumerate(self.parents):
                if parent != ROOT:
                    visible[row] |= visible[parent]
        elif self.is_block:
            visible = np.ones((self.n_rows, self.n_rows), np.bool_)
        return Segment(self.n_before, self.depths, visible, self.table)
