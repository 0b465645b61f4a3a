"""Draft trees that grow depth by depth, many of them together.

A drafter scores the expanded nodes of all trees, chooses tokens after each of them, and hands the choices to the trees,
which name the nodes to expand next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.drafter.trees.choice import Choice, ChoiceRequest
from engine.protocol import Branch
from engine.sampling.history import History
from engine.sampling.params import SamplingParams
from engine.tree import ROOT


@dataclass(slots=True, frozen=True)
class DraftRequest:
    """What to draft for one sequence."""

    params: SamplingParams
    history: History | None  # prompt and output, if penalties or min_tokens need them; the draft adds tokens
    root: int  # the last committed token
    position: int  # of the first drafted token in prompt + output
    depth: int  # most tokens on a path
    n_nodes: int  # most nodes


class DraftTree(ABC):
    """A draft that grows by one depth a call of ``grow``; nodes keep their numbers.

    A request with a history gets a chain, whose tokens the history records: penalties depend on the path.
    """

    def __init__(self, request: DraftRequest, parents: Sequence[int], is_chain: bool) -> None:
        self.request, self.parents, self.is_chain = request, parents, is_chain
        self.tokens: list[int] = []  # of every node
        self.expanded: list[int] = [ROOT]  # nodes whose children come next
        self.position = request.position  # of the tokens that come next, in prompt + output

    @abstractmethod
    def choice_requests(self) -> list[ChoiceRequest]:
        """Return what to choose after each expanded node."""

    @abstractmethod
    def level_sizes(self) -> list[int]:
        """Most tokens that each depth needs, if all nodes of a depth choose from the same logits."""

    @abstractmethod
    def branch(self, source: str) -> Branch | None:
        """Return the draft, best nodes first; None if it is empty."""

    @abstractmethod
    def _add_children(self, choices: Sequence[Choice]) -> list[int]:
        """Add children of the expanded nodes; return those to expand next."""

    def grow(self, choices: Sequence[Choice]) -> list[int]:
        """Add one depth, from a choice per expanded node; return the nodes to expand next, none if finished."""
        self.position += 1
        self.expanded = self._add_children(choices)
        if self.request.history is not None:
            for node in self.expanded:
                self.request.history.add(self.tokens[node])
        return self.expanded


@dataclass(slots=True, frozen=True)
class TreeLevel:
    """The expanded nodes of several trees at one depth, a row each, tree by tree."""

    depth: int  # 0: the roots
    trees: Mapping[int, DraftTree]  # those that still grow, by the numbers given to ``grow_trees``
    parents: list[int]  # [n_rows], row of each node's parent in the previous level; empty at depth 0

    @property
    def owners(self) -> list[int]:
        """The number of each row's tree, ``[n_rows]``."""
        return [number for number, tree in self.trees.items() for _ in tree.expanded]

    @property
    def tokens(self) -> list[int]:
        """The token of each row's node, ``[n_rows]``."""
        return [
            tree.request.root if node == ROOT else tree.tokens[node]
            for tree in self.trees.values()
            for node in tree.expanded
        ]

    def choice_requests(self) -> list[ChoiceRequest]:
        """Return what to choose after each row."""
        return [request for tree in self.trees.values() for request in tree.choice_requests()]


def grow_trees(trees: Mapping[int, DraftTree], choose_level: Callable[[TreeLevel], Sequence[Choice]]) -> None:
    """Grow all trees together, depth by depth; ``choose_level`` returns a choice for each row of a level."""
    level = TreeLevel(0, trees, [])
    while level.trees:
        choices, parents, first = choose_level(level), list[int](), 0
        for tree in level.trees.values():
            rows = {node: row for row, node in enumerate(tree.expanded, first)}
            grown = tree.grow(choices[first : first + len(rows)])
            parents += [rows[tree.parents[node]] for node in grown]
            first += len(rows)
        level = TreeLevel(level.depth + 1, {i: tree for i, tree in level.trees.items() if tree.expanded}, parents)
