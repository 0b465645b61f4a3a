"""Trees that grow best first, in Python and in compiled code, against a search over all rows for every node."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.best_first.arrays import LIKELY, NONE, begin_tree, make_growing_tree, next_row
from engine.best_first.lists import best_nodes, grow_tree, parents_among, path_probabilities
from engine.tree import ROOT

WIDTH = 4
# Probabilities with many ties; what follows a path depends on its depth and last token.
PROBABILITIES = st.lists(st.sampled_from([0.05, 0.125, 0.25, 0.5, 0.6, 1.0]), max_size=WIDTH).map(
    lambda p: sorted(p, reverse=True)
)
ALL_CHILDREN = st.lists(st.lists(PROBABILITIES, min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=5)


def search_rows(every, budget, least, likely, number):
    """Return (parents, ranks) of a tree; before the children of a row are known, its best one has ``likely``."""
    parents, ranks, depths = [], [], [0]
    reach, known = [number(1.0)], {}
    while len(parents) < budget:
        following = []
        for row, path in enumerate(reach):
            n_taken = parents.count(row - 1)
            unknown = [number(likely)] if row not in known else []
            following += [path * p for p in [*known.get(row, unknown), 0.0][n_taken:][:1]]
        best = max(range(len(reach)), key=following.__getitem__)
        if following[best] <= least:
            break
        if best not in known:
            last = ranks[best - 1] if best else 0
            known[best] = [number(p) for p in every[depths[best]][last]] if depths[best] < len(every) else []
            continue
        ranks.append(parents.count(best - 1))
        parents.append(best - 1)
        depths.append(depths[best] + 1)
        reach.append(following[best])
    return parents, ranks


@given(ALL_CHILDREN, st.integers(0, 20), st.sampled_from([0.0, 0.011, 0.3]))
def test_trees_from_lists_hold_the_best_nodes_in_order(every, budget, least):
    def children(node, path, place):
        depth, last = place
        return [(rank, p, (depth + 1, rank)) for rank, p in enumerate(every[depth][last])] if depth < len(every) else []

    tree = grow_tree(children, (0, 0), budget, least)
    assert (tree.parents, tree.tokens) == search_rows(every, budget, least, 1.0, float)
    assert tree.reach == path_probabilities(tree.parents, tree.scores)
    assert tree.reach == sorted(tree.reach, reverse=True)


@given(ALL_CHILDREN, st.integers(0, 20), st.sampled_from([0.0, 0.011, 0.3]))
def test_trees_from_arrays_hold_the_same_nodes_as_the_search(every, budget, least):
    tree = make_growing_tree(20, WIDTH)
    for _ in range(2):  # a tree serves again
        begin_tree(tree)
        while (row := next_row(tree, budget, least)) != NONE:
            depth, last = tree.depths[row], tree.ranks[row - 1] if row else 0
            p = every[depth][last] if depth < len(every) else []
            tree.child_ids[row, : len(p)], tree.child_p[row, : len(p)] = np.arange(len(p)) + 100, p
            tree.n_children[row] = len(p)
        n = tree.progress[0]
        found = tree.parents[:n].tolist(), tree.ranks[:n].tolist()
        assert found == search_rows(every, budget, least, LIKELY, np.float32)
        assert tree.tokens[:n].tolist() == [100 + rank for rank in found[1]]
        assert tree.reach[1 : n + 1].tolist() == pytest.approx(
            path_probabilities(found[0], tree.scores[:n].tolist()), rel=1e-5
        )


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0.0, 0.3, 0.5, 1.0])), max_size=30), st.integers(0, 30))
def test_chosen_nodes_are_the_best_and_keep_their_ancestors(nodes, n):
    parents = [above % (node + 1) - 1 for node, (above, _) in enumerate(nodes)]
    scores = [score for _, score in nodes]
    paths: dict[int, list[float]] = {ROOT: []}
    for node, parent in enumerate(parents):
        paths[node] = [*paths[parent], scores[node]]
    reach = path_probabilities(parents, scores)
    assert reach == pytest.approx([prod(paths[node]) for node in range(len(nodes))])
    kept = best_nodes(reach, n)
    assert kept == sorted(range(len(nodes)), key=lambda node: (-reach[node], node))[:n]
    for place, (node, parent) in enumerate(zip(kept, parents_among(kept, parents), strict=True)):
        assert parent < place
        assert (kept[parent] if parent != ROOT else ROOT) == parents[node]
