"""Works of a step, from which ``engine.cuda.plan.fill`` builds items of attention. NumPy only.

An item says which rows read which keys: ``[members_at, n_members, table_at, base, unit, split, end, 0]``, where
``members_at`` and ``table_at`` are positions in the plan. The members are rows. They read the keys of the text's
positions ``split * SPLIT`` to ``end - 1``. The key of position ``p`` is in the slot ``table[(p - base) // unit] * unit
+ (p - base) % unit``: from position ``base`` on, a table holds blocks of ``unit`` slots, or single slots if ``unit`` is
1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
CHAIN, BLOCK, TREE = range(3)  # kinds of works
NO_WINDOW = 1 << 40  # tokens; longer than any text


class PathWork(NamedTuple):
    """One sequence's rows in a step: a chain of rows, or the root and its tree.

    Args:
        n_cached: committed tokens before the first row.
        n_rows: rows.
        parents: parent of every node, -1 for the root, ``[n_rows - 1]``; parents precede their children. None: a chain.
        blocks: blocks of the sequence in text order; row ``i`` is written to its slot ``n_cached + i``.
        n_run: leading rows that ran in an earlier step; they are not rows of this one, but its rows still see them.
        is_block: every row of a chain sees all rows, as if each had the position of the last.
    """

    n_cached: int
    n_rows: int
    parents: Sequence[int] | Ints | None
    blocks: Sequence[int] | Ints
    n_run: int = 0
    is_block: bool = False

    @property
    def n_new(self) -> int:
        """Rows of this step."""
        return self.n_rows - self.n_run


class FlatWorks(NamedTuple):
    """The works of a step as arrays, for compiled code."""

    table: NDArray[np.int64]  # [n_works, 6]: n_cached, n_rows, n_run, kind, blocks, parents
    parents: Ints  # of all trees, concatenated
    blocks: Ints  # of all works, concatenated
    scratch: Ints  # [3, rows of the largest work]
    windows: NDArray[np.int64]  # of the layers; ``NO_WINDOW`` if there is none
    block_size: int
    split: int  # positions
    tile: int  # rows of an item


def flatten(
    works: Sequence[PathWork], windows: Sequence[int | None], block_size: int, split: int, tile: int
) -> FlatWorks:
    """Return the arrays of the works."""
    trees = [() if one.parents is None or one.is_block else one.parents for one in works]
    numbers = [
        (one.n_cached, one.n_rows, one.n_run, _kind(one), len(one.blocks), len(parents))
        for one, parents in zip(works, trees, strict=True)
    ]
    blocks, parents = _concatenate([one.blocks for one in works]), _concatenate(trees)
    scratch = np.empty((3, max(one.n_rows for one in works)), np.int32)
    widths = np.array([NO_WINDOW if window is None else window for window in windows], np.int64)
    return FlatWorks(np.array(numbers, np.int64), parents, blocks, scratch, widths, block_size, split, tile)


def _kind(work: PathWork) -> int:
    if work.is_block:
        return BLOCK
    return CHAIN if work.parents is None else TREE


def _concatenate(parts: list[Sequence[int] | Ints]) -> Ints:
    filled = [part for part in parts if len(part)]
    return np.concatenate(filled, dtype=np.int32, casting="unsafe") if filled else np.empty(0, np.int32)
