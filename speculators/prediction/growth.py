"""Drafts of an alignment: what is predicted at its places, the most probable nodes first."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from engine.tree import ROOT
from speculators.prediction.alignment import SPELLED, Alignment, Place


class Drafted(NamedTuple):
    """A tree; ``scores`` are probabilities of a node once its parent is accepted."""

    tokens: list[int]
    parents: list[int] | None  # None: a chain
    scores: list[float]


def grow(alignment: Alignment, budget: int, least: float) -> Drafted:
    """At most ``budget`` nodes of path probability ``least`` and more."""
    places = alignment.places
    if len(places) == 1 and not places[0].spelled and not alignment.replacements.by_first:
        return _chain(alignment, places[0], budget, least)
    return _Tree(alignment).grown(budget, least)


def _chain(alignment: Alignment, place: Place, budget: int, least: float) -> Drafted:
    """The common case: one place, where all of what is predicted comes next."""
    tokens: list[int] = alignment.predicted[place.position : place.position + budget].tolist()
    scores: list[float] = []
    reach = place.weight
    for depth, token in enumerate(tokens):
        score = alignment.rates.of(place.run + depth)
        reach *= score
        if reach < least or token < 0:
            break
        scores.append(score)
    return Drafted(tokens[: len(scores)], None, scores)


class _Tree:
    """A tree that grows by path probability; nodes that several places lead to are one."""

    def __init__(self, alignment: Alignment) -> None:
        self._alignment = alignment
        self._open: list[tuple[float, int, int, int, Place]] = []  # - path probability, number, parent, token, behind
        self._n = 0  # numbers given
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._reach: list[float] = []
        self._nodes: dict[tuple[int, int], int] = {}

    def grown(self, budget: int, least: float) -> Drafted:
        """The whole tree."""
        for place in self._alignment.places:
            self._go_on(ROOT, place)
        while self._open:
            minus, _, parent, token, place = heappop(self._open)
            if -minus < least:
                break
            node = self._nodes.get((parent, token))
            if node is None:
                if len(self._tokens) == budget:
                    break
                node = self._nodes[parent, token] = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(parent)
                self._reach.append(0.0)
            self._reach[node] -= minus
            self._go_on(node, place)
        above = [1.0 if parent == ROOT else self._reach[parent] for parent in self._parents]
        scores = [min(own / whole, 1.0) for own, whole in zip(self._reach, above, strict=True)]
        return Drafted(self._tokens, self._parents, scores)

    def _go_on(self, parent: int, place: Place) -> None:
        """What may follow at a place, whose weight is the path probability until there."""
        if place.spelled:
            self._push(parent, place.spelled[0], place, SPELLED, place.position, place.spelled[1:])
            return
        predicted, position = self._alignment.predicted, place.position
        if position >= len(predicted):
            return
        left = 1.0
        for one in self._alignment.replacements.at(predicted, position):
            self._push(parent, one.new[0], place, left * one.rate, position + len(one.old), one.new[1:])
            left *= 1.0 - one.rate
        token = int(predicted[position])
        if token >= 0:
            self._push(parent, token, place, left * self._alignment.rates.of(place.run), position + 1, ())

    def _push(
        self, parent: int, token: int, place: Place, share: float, position: int, spelled: tuple[int, ...]
    ) -> None:
        reach = place.weight * share
        self._n += 1
        behind = Place(position, reach, place.run + 1, spelled)
        heappush(self._open, (-reach, self._n, parent, token, behind))
