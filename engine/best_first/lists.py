"""Grows draft trees best first: the next node is always the one that the target most probably writes.

``grow_tree`` serves callers in Python, whose children are lists; ``engine.best_first.arrays`` serves compiled code,
whose children are arrays. Calls of compiled code with a few children each would take longer than this heap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

from engine.tree import ROOT

StateT = TypeVar("StateT")


class GrownTree(NamedTuple):
    """Nodes in the order of their path probabilities, the highest first; parents precede children."""

    tokens: list[int]
    parents: list[int]
    scores: list[float]  # probability of a node once its parent is accepted
    reach: list[float]  # probability of its path


def grow_tree(
    children: Callable[[int, float, StateT], Iterable[tuple[int, float, StateT]]],
    root_state: StateT,
    budget: int,
    least: float = 0.0,
) -> GrownTree:
    """Return the tree of at most ``budget`` nodes of path probability ``least`` or more; the first of equals wins.

    Args:
        children: takes a node (``ROOT`` first), its path probability and its state; returns token, score and state of
            each child. Scores are at most 1. It is called once per node, in the order of the tree.
        root_state: the state of the root.
        budget: nodes.
        least: path probability.
    """
    tree = GrownTree([], [], [], [])
    tokens, parents, scores, reach = tree
    waiting: list[tuple[float, int, int, int, float, StateT]] = []  # -path probability, serial number, ...
    node, path, state, n_found = ROOT, 1.0, root_state, 0
    while len(tokens) < budget:
        for token, score, below in children(node, path, state):
            if path * score >= least:
                heappush(waiting, (-path * score, n_found, token, node, score, below))
                n_found += 1
        if not waiting:
            break
        minus_path, _, token, parent, score, state = heappop(waiting)
        node, path = len(tokens), -minus_path
        tokens.append(token)
        parents.append(parent)
        scores.append(score)
        reach.append(path)
    return tree


def path_probabilities(parents: Sequence[int], scores: Sequence[float]) -> list[float]:
    """Return the product of the scores on the path to each node; parents precede children."""
    reach: list[float] = []
    for parent, score in zip(parents, scores, strict=True):
        reach.append(score if parent == ROOT else reach[parent] * score)
    return reach


def best_nodes(reach: Sequence[float], n: int) -> list[int]:
    """Return the ``n`` nodes of highest path probability (or its logarithm), best first; the first of equals wins.

    A parent always comes before its children, whose path probability is never higher.
    """
    return sorted(range(len(reach)), key=reach.__getitem__, reverse=True)[:n]


def parents_among(nodes: Sequence[int], parents: Sequence[int]) -> list[int]:
    """Return the parents of a choice of nodes, numbered by their places in it; ``parents`` are those of all nodes."""
    places = [ROOT] * (len(parents) + 1)  # the last one is the root's
    for place, node in enumerate(nodes):
        places[node] = place
    return [places[parents[node]] for node in nodes]
