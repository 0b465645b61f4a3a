"""The token tree against obvious loops over its arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tree import EMPTY_TREE, ROOT, TokenTree


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 24) -> TokenTree:
    n = draw(st.integers(0, max_nodes))
    parents = [draw(st.integers(ROOT, i - 1)) for i in range(n)]
    probe: list[bool] = []
    for parent in parents:
        probe.append((parent != ROOT and probe[parent]) or draw(st.integers(0, 4)) == 0)
    tokens = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    return TokenTree(tokens, parents, probe=probe)


def ancestors(tree: TokenTree, node: int) -> list[int]:
    """``node`` and everything above it, the root excluded."""
    above = []
    while node != ROOT:
        above.append(node)
        node = tree.parents[node]
    return above


@given(trees())
def test_depth_and_path_count_ancestors(tree: TokenTree) -> None:
    for node in range(len(tree)):
        assert tree.path(node) == ancestors(tree, node)[::-1]
        assert tree.depths[node] == len(ancestors(tree, node))
    assert tree.path(ROOT) == []


@given(trees())
def test_the_mask_shows_each_row_its_ancestors_itself_and_the_root(tree: TokenTree) -> None:
    n = len(tree) + 1
    expected = np.zeros((n, n), dtype=bool)
    expected[:, 0] = True
    for node in range(len(tree)):
        expected[node + 1, [above + 1 for above in ancestors(tree, node)]] = True
    assert np.array_equal(tree.ancestor_mask(), expected)


@given(trees())
def test_children_are_listed_in_drafting_order_without_probes(tree: TokenTree) -> None:
    for node in range(ROOT, len(tree)):
        expected = [i for i in range(len(tree)) if tree.parents[i] == node and not tree.probe[i]]
        assert tree.children[node + 1] == expected
    assert len(tree.children) == len(tree) + 1


@given(trees(), st.lists(st.integers(0, 5), max_size=4))
def test_find_reaches_any_path_that_is_there(tree: TokenTree, tokens: list[int]) -> None:
    there = [i for i in range(ROOT, len(tree)) if [tree.tokens[j] for j in tree.path(i)] == tokens]
    found = tree.find(tokens)
    assert found in there if there else found is None
    for node in range(len(tree)):
        assert tree.find([tree.tokens[j] for j in tree.path(node)]) is not None


@given(trees())
def test_a_chain_is_a_tree_in_which_nothing_is_hidden(tree: TokenTree) -> None:
    n = len(tree) + 1
    assert tree.is_chain == np.array_equal(tree.ancestor_mask(), np.tril(np.ones((n, n), dtype=bool)))


def test_the_empty_tree_has_only_a_root() -> None:
    assert len(EMPTY_TREE) == 0
    assert EMPTY_TREE.children == [[]]
    assert EMPTY_TREE.is_chain
    assert EMPTY_TREE.find([]) == ROOT
    assert EMPTY_TREE.ancestor_mask().tolist() == [[True]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": [1, 2], "parents": [ROOT]}, "must be equal"),
        ({"tokens": [1], "parents": [0]}, "must precede"),
        ({"tokens": [1], "parents": [-2]}, "must precede"),
        ({"tokens": [1, 2], "parents": [ROOT, 0], "probe": [True, False]}, "below probe"),
    ],
)
def test_malformed_trees_are_refused(arguments: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenTree(**arguments)  # type: ignore[arg-type]
