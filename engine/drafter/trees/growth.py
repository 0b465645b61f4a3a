"""Ranked and drawn draft trees, and the choice between them.

A ranked tree keeps the paths of highest probability (EAGLE-2, arXiv 2406.16858, section 4). A drawn tree serves
rejection sampling. Its tokens are draws from the draft distribution, and its shape must not depend on them: a set of
siblings passes an exact test against ``q`` only if the test knows no later draw. ``static_shape`` therefore estimates
that child ``i`` of an accepted node is accepted with probability ``ACCEPTANCE * SIBLING**i``.

Siblings are draws from the same ``q``, with repetition (SpecInfer's multi-step test, arXiv 2305.09781). A drawn stop id
has no children, since the verifier never goes past it. A budget that cuts the tree then keeps other nodes, which are
tested after the stop id or not in the same walk.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from engine.best_first.lists import best_nodes, parents_among
from engine.drafter.trees.choice import Choice, ChoiceRequest
from engine.drafter.trees.draft_tree import DraftRequest, DraftTree
from engine.protocol import Branch
from engine.tree import ROOT, FloatArray

# Measured on a target of 4.6M parameters at temperatures of 0.6 to 1: the target accepts a first draw in 54%, a second
# in 10% and a third in 5% of all cases; better drafters reach 70%. Shapes of 8 to 64 nodes from these two numbers keep
# at least 96% of the tokens that the best numbers would have accepted.
ACCEPTANCE = 0.7  # of a first draw
SIBLING = 0.2  # factor for every sibling that was rejected before

Shape = tuple[int, ...]  # the parent of every node, parents first


class RankedTree(DraftTree):
    """The ``n_nodes`` most probable nodes found; a node's probability is the product of the scores on its path.

    Args:
        request: greedy or coupled sampling.
        depth: most tokens on a path.
        beam: nodes expanded at a depth, and children of a node; 1 makes a chain.
    """

    def __init__(self, request: DraftRequest, depth: int, beam: int) -> None:
        self._parents: list[int] = []
        super().__init__(request, self._parents, beam == 1)
        self._depth, self._beam, self._width = depth, beam, min(beam, request.n_nodes)
        self._scores: list[float] = []
        self._logs: list[float] = []  # log of the product of scores on the path
        self._kept_logs: list[float] = []  # heap of the n_nodes highest of them

    def level_sizes(self) -> list[int]:
        return [self._width] * self._depth

    def choice_requests(self) -> list[ChoiceRequest]:
        one = ChoiceRequest(self.request.params, self.request.history, self.position, self._width)
        return [one] * len(self.expanded)

    def _add_children(self, choices: Sequence[Choice]) -> list[int]:
        first = len(self.tokens)
        for parent, choice in zip(self.expanded, choices, strict=True):
            self._add(parent, choice)
        if self.position >= self.request.position + self._depth:
            return []
        least = self._kept_logs[0] if len(self._kept_logs) == self.request.n_nodes else -math.inf
        stops, logs = self.request.params.stop_ids, self._logs
        fresh = [i for i in range(first, len(self.tokens)) if logs[i] >= least and self.tokens[i] not in stops]
        return sorted(fresh, key=logs.__getitem__, reverse=True)[: self._beam]

    def _add(self, parent: int, choice: Choice) -> None:
        """Add the children of one node, except for those that ``branch`` can no longer keep."""
        above = 0.0 if parent == ROOT else self._logs[parent]
        for token, score in zip(choice.tokens, choice.scores, strict=True):
            log = above + math.log(score)
            if len(self._kept_logs) < self.request.n_nodes:
                heapq.heappush(self._kept_logs, log)
            elif log > self._kept_logs[0]:
                heapq.heapreplace(self._kept_logs, log)
            else:
                return  # the first of equals stays, and later siblings are no more probable
            self.tokens.append(token)
            self._parents.append(parent)
            self._scores.append(score)
            self._logs.append(log)

    def branch(self, source: str) -> Branch | None:
        kept = best_nodes(self._logs, self.request.n_nodes)
        tokens, scores = [self.tokens[i] for i in kept], [self._scores[i] for i in kept]
        parents = None if self.is_chain else parents_among(kept, self._parents)
        return Branch(tokens, source, parents, scores=scores) if kept else None


class DrawnTree(DraftTree):
    """Independent draws in a fixed shape; nodes have the numbers of the shape."""

    def __init__(self, request: DraftRequest, shape: Shape) -> None:
        super().__init__(request, shape, shape == _chain_shape(len(shape)))
        self.tokens = [ROOT] * len(shape)  # ROOT: not drawn yet
        self._shape = shape
        self._children: list[list[int]] = [[] for _ in range(len(shape) + 1)]  # of node i in entry i + 1
        for node, parent in enumerate(shape):
            self._children[parent + 1].append(node)
        self._q: dict[int, FloatArray] = {}  # the distribution of every node that was drawn

    def level_sizes(self) -> list[int]:
        depths = [0]  # of the root, then of the nodes
        for parent in self._shape:
            depths.append(depths[parent + 1] + 1)
        return [depths.count(depth) for depth in range(1, max(depths) + 1)]

    def choice_requests(self) -> list[ChoiceRequest]:
        params, history, children = self.request.params, self.request.history, self._children
        return [ChoiceRequest(params, history, self.position, len(children[node + 1])) for node in self.expanded]

    def _add_children(self, choices: Sequence[Choice]) -> list[int]:
        fresh: list[int] = []
        for node, choice in zip(self.expanded, choices, strict=True):
            assert choice.q is not None, "a drawn tree needs the distribution of its draws"
            for child, token in zip(self._children[node + 1], choice.tokens, strict=True):
                self.tokens[child], self._q[child] = token, choice.q
                fresh.append(child)
        stops = self.request.params.stop_ids
        return [node for node in fresh if self._children[node + 1] and self.tokens[node] not in stops]

    def branch(self, source: str) -> Branch | None:
        nodes = sorted(self._q)
        if not nodes:
            return None
        parents = None if self.is_chain else parents_among(nodes, self._shape)
        return Branch([self.tokens[i] for i in nodes], source, parents, q=np.stack([self._q[i] for i in nodes]))


def start_draft(request: DraftRequest, depth: int, beam: int, acceptance: tuple[float, ...] = ()) -> DraftTree:
    """Return an empty draft that suits the request.

    It is a chain if the request has a history, or draws and has no more nodes than depths.

    Args:
        request: its depth and number of nodes are at least 1.
        depth: most tokens on a path of this drafter.
        beam: nodes expanded at a depth, and children of a node.
        acceptance: as in ``static_shape``.
    """
    depth = min(depth, request.depth)
    is_drawn = request.params.rejects
    if request.history is not None or (is_drawn and request.n_nodes <= depth):
        return start_chain(request, depth)
    if is_drawn:
        return DrawnTree(request, static_shape(depth, request.n_nodes, beam, acceptance))
    return RankedTree(request, depth, beam)


def start_chain(request: DraftRequest, depth: int) -> DraftTree:
    """Return an empty chain of at most ``depth`` tokens."""
    depth = min(depth, request.n_nodes)
    return DrawnTree(request, _chain_shape(depth)) if request.params.rejects else RankedTree(request, depth, 1)


@lru_cache(maxsize=256)
def static_shape(depth: int, n_nodes: int, beam: int, acceptance: tuple[float, ...] = ()) -> Shape:
    """Return the ``n_nodes`` nodes of highest estimate, best first; the shallower of equals wins.

    Args:
        depth: most nodes on a path.
        n_nodes: most nodes.
        beam: children of a node, and nodes of a depth that have children.
        acceptance: of a first draw at each depth, ``[depth]``; empty: ``ACCEPTANCE`` everywhere.
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


def _chain_shape(depth: int) -> Shape:
    return tuple(range(ROOT, depth - 1))
