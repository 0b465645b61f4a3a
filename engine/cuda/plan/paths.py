"""A tree as the set of its paths from the root to a leaf, on which attention is plain and causal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """Rows from the root (row 0) to a leaf.

    Args:
        rows: of the tree, one for every position.
        first: from here on the rows are this path's to attend for; those before belong to earlier paths.
    """

    rows: list[int]
    first: int

    @property
    def own(self) -> list[int]:
        """The rows that this path attends for, at consecutive positions."""
        return self.rows[self.first :]


def paths_of(parents: Sequence[int]) -> list[Path]:
    """The paths of a tree; every row is the own row of one of them.

    Args:
        parents: of every node, -1 being the root; node ``i`` is row ``i + 1``. They precede their children.
    """
    is_leaf = [True] * (len(parents) + 1)
    for parent in parents:
        is_leaf[parent + 1] = False
    owned = [False] * len(is_leaf)
    paths: list[Path] = []
    for leaf in (row for row, ends in enumerate(is_leaf) if ends):
        rows: list[int] = []
        first, row = 0, leaf
        while True:
            rows.append(row)
            first += owned[row]
            owned[row] = True
            if row == 0:
                break
            row = parents[row - 1] + 1
        paths.append(Path(rows[::-1], first))
    return paths
