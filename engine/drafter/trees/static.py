"""A tree of independent draws, for rejection sampling: its shape is settled before anything is drawn.

A set of siblings is tested exactly against ``q`` only if its tokens are what was drawn, and only if what is tested does
not depend on draws that it has yet to be tested against. So the shape follows from estimates that know no token: the
i-th child of a node (from 0) is accepted with ``ACCEPTANCE * SIBLING**i``, given that the node was. The best nodes by
the product along their paths are the shape.

Siblings are draws from one and the same ``q``, with repetition (SpecInfer's multi-step test, arXiv 2305.09781): the
verifier's residual accounts for every one that it rejected. Below a drawn stop id nothing is drawn: a walk ends there,
so that those nodes would never be tested. A budget that cuts the tree then keeps further nodes, all of which are tested
later than the stop id or not in the same walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from engine.best_first.lists import best_nodes, parents_among
from engine.drafter.trees.choice import Ask, Choice
from engine.protocol import Branch
from engine.sampling.params import SamplingParams
from engine.tree import ROOT, FloatArray

# Measured on a target of 4.6M parameters and a drafter at temperatures of 0.6 to 1: a first draw is accepted with 0.54,
# a second in 0.10 and a third in 0.05 of all cases; better drafters reach 0.7. By either, shapes of 8 to 64 nodes that
# follow from these two numbers have within 4% of the tokens accepted that the best of other such numbers give.
ACCEPTANCE = 0.7  # of a first draw
SIBLING = 0.2  # what every rejected sibling before leaves of that

Shape = tuple[int, ...]  # the parent of every node, parents first


@lru_cache(maxsize=256)
def static_shape(depth: int, n_nodes: int, beam: int, acceptance: tuple[float, ...] = ()) -> Shape:
    """Return the parents of the ``n_nodes`` nodes of highest estimate, best first; the shallower of equals wins.

    Args:
        depth: the longest path.
        n_nodes: at most so many.
        beam: children of a node, and nodes of a depth that have children.
        acceptance: of a first draw, per depth, ``[depth]``; empty: ``ACCEPTANCE`` everywhere.
    """
    parents: list[int] = []
    reach: list[float] = []
    level = [ROOT]
    for chance in acceptance or (ACCEPTANCE,) * depth:
        first = len(reach)
        siblings = [(1.0 if node == ROOT else reach[node]) * chance for node in level]
        for _ in range(beam):
            parents += level
            reach += siblings
            siblings = [estimate * SIBLING for estimate in siblings]
        level = [first + node for node in best_nodes(reach[first:], min(beam, n_nodes))]
    return tuple(parents_among(best_nodes(reach, n_nodes), parents))


class StaticTree:
    """Draws in a given shape.

    Args:
        params: the request's; it draws (``choice.draws``), and needs no history.
        position: of the first drafted token in prompt + output.
        shape: from ``static_shape``; candidates have its numbers.
    """

    def __init__(self, params: SamplingParams, position: int, shape: Shape) -> None:
        self._params = params
        self._position = position
        self._shape = shape
        self._children: list[list[int]] = [[] for _ in range(len(shape) + 1)]  # entry i + 1 is node i's, 0 the root's
        for node, parent in enumerate(shape):
            self._children[parent + 1].append(node)
        self._level = 0  # depth of the nodes whose children come next
        self._expanded = [ROOT]
        self._drawn: dict[int, tuple[int, FloatArray]] = {}  # node -> its token, and what that was drawn from

    def sizes(self) -> list[int]:
        """Nodes of every depth, from 1 on."""
        depths = [0]  # of the root, then of the nodes
        for parent in self._shape:
            depths.append(depths[parent + 1] + 1)
        return [depths.count(depth) for depth in range(1, max(depths) + 1)]

    def asks(self) -> list[Ask]:
        """So many draws behind every expanded node as it has children."""
        position = self._position + self._level
        return [Ask(self._params, None, position, len(self._children[node + 1])) for node in self._expanded]

    def take(self, choices: Sequence[Choice]) -> list[int]:
        """One level more."""
        fresh: list[int] = []
        for node, choice in zip(self._expanded, choices, strict=True):
            assert choice.q is not None, "the request draws"
            for child, token in zip(self._children[node + 1], choice.tokens, strict=True):
                self._drawn[child] = token, choice.q
                fresh.append(child)
        stops = self._params.stop_ids
        self._expanded = [node for node in fresh if self._children[node + 1] and self.token(node) not in stops]
        self._level += 1
        return self._expanded

    def token(self, candidate: int) -> int:
        """Of a node that was drawn."""
        return self._drawn[candidate][0]

    def parent(self, candidate: int) -> int:
        """By the shape."""
        return self._shape[candidate]

    def branch(self, source: str) -> Branch | None:
        """All that was drawn, in the order of the shape."""
        if not self._drawn:
            return None
        nodes = sorted(self._drawn)
        tokens, rows = zip(*(self._drawn[node] for node in nodes), strict=True)
        return Branch(tokens, source, parents_among(nodes, self._shape), q=np.stack(rows))
