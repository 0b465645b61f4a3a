"""Grows a draft tree best first in compiled code: ``engine.best_first.lists.grow_tree`` on arrays.

A caller alternates between ``next_row``, which appends nodes as long as their siblings are known, and filling in the
children of the row that ``next_row`` returned::

    begin_tree(tree)
    while (row := next_row(tree, budget, least)) != NONE:
        ...  # write tree.child_ids[row], tree.child_p[row], best first, and tree.n_children[row]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled_in_place
from engine.tree import FloatArray, IntArray

NONE = -1
LIKELY = 0.5  # probability that the best child of a row is taken to have before its children are known


class GrowingTree(NamedTuple):
    """A tree of at most ``n`` nodes while it grows; row 0 is the root, row ``i + 1`` is node ``i``."""

    tokens: IntArray  # [n]
    parents: IntArray  # [n]
    ranks: IntArray  # [n]: place among the children of the parent
    scores: FloatArray  # [n]: probability of the node once its parent is accepted
    reach: FloatArray  # [n + 1]: probability of the whole path
    depths: IntArray  # [n + 1]
    child_ids: IntArray  # [n + 1, width], best first
    child_p: FloatArray  # [n + 1, width]
    n_children: IntArray  # [n + 1]: NONE until the caller has filled them in
    following: npt.NDArray[np.float64]  # [n + 1]: path probability of the row's next node; 0 if it has no more
    n_taken: IntArray  # [n + 1]: children that are nodes
    progress: IntArray  # [2]: nodes so far, row whose children the caller fills in


def make_growing_tree(n: int, width: int) -> GrowingTree:
    """Return room for ``n`` nodes with at most ``width`` children each."""
    return GrowingTree(
        tokens=np.empty(n, np.int32),
        parents=np.empty(n, np.int32),
        ranks=np.empty(n, np.int32),
        scores=np.empty(n, np.float32),
        reach=np.empty(n + 1, np.float32),
        depths=np.empty(n + 1, np.int32),
        child_ids=np.empty((n + 1, width), np.int32),
        child_p=np.empty((n + 1, width), np.float32),
        n_children=np.empty(n + 1, np.int32),
        following=np.empty(n + 1, np.float64),
        n_taken=np.empty(n + 1, np.int32),
        progress=np.zeros(2, np.int32),
    )


@compiled_in_place
def begin_tree(tree: GrowingTree) -> None:
    """Leave the root alone in the tree."""
    tree.reach[0] = 1.0
    tree.depths[0] = 0
    tree.n_taken[0] = 0
    tree.n_children[0] = NONE
    tree.following[0] = LIKELY
    tree.progress[0], tree.progress[1] = 0, NONE


@compiled_in_place
def next_row(tree: GrowingTree, budget: int, least: float) -> int:
    """Append the most probable nodes; return the row whose children are needed next, NONE if the tree is finished.

    It is finished with ``budget`` nodes, or if no further node has a path probability above ``least``. The children of
    a row are needed when its best child could be the next node. Most of the last nodes never get there.
    """
    if tree.progress[1] != NONE:
        _note_following(tree, tree.progress[1])
        tree.progress[1] = NONE
    while tree.progress[0] < budget:
        best, best_reach = NONE, least
        for row in range(tree.progress[0] + 1):
            if tree.following[row] > best_reach:
                best, best_reach = row, tree.following[row]
        if best == NONE:
            break
        if tree.n_children[best] == NONE:
            tree.progress[1] = best
            return best
        _append(tree, best)
    return NONE


@compiled_in_place
def _note_following(tree: GrowingTree, row: int) -> None:
    taken = tree.n_taken[row]
    has_more = taken < tree.n_children[row]
    tree.following[row] = tree.reach[row] * tree.child_p[row, taken] if has_more else 0.0


@compiled_in_place
def _append(tree: GrowingTree, above: int) -> None:
    """Append the next child of row ``above``."""
    node = tree.progress[0]
    rank = tree.n_taken[above]
    p = tree.child_p[above, rank]
    tree.tokens[node] = tree.child_ids[above, rank]
    tree.parents[node] = above - 1
    tree.ranks[node] = rank
    tree.scores[node] = p
    row = node + 1
    tree.reach[row] = tree.reach[above] * p
    tree.depths[row] = tree.depths[above] + 1
    tree.n_children[row] = NONE
    tree.following[row] = tree.reach[row] * LIKELY
    tree.n_taken[row] = 0
    tree.n_taken[above] += 1
    _note_following(tree, above)
    tree.progress[0] += 1
