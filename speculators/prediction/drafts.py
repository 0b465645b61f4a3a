"""Drafts what is predicted at the places of an alignment."""

from __future__ import annotations

from collections.abc import Sequence

from engine.best_first.lists import grow_tree
from engine.protocol import Branch
from speculators.prediction.alignment import PENDING, Alignment

Place = tuple[int, float, int, tuple[int, ...]]  # as ``PredictedPlace``, with the path probability as its weight


def draft(alignment: Alignment, source: str, budget: int, least: float) -> list[Branch]:
    """Return at most ``budget`` nodes of path probability ``least`` and more as one branch, or nothing."""
    if len(alignment.places) == 1 and not alignment.places[0].pending and not alignment.replacements.by_first:
        return _chain(alignment, source, budget, least)
    places: Sequence[Place] = alignment.places

    def children(node: int, path: float, places: Sequence[Place]) -> list[tuple[int, float, Sequence[Place]]]:
        found = [one for place in places for one in _continuations(alignment, place)]
        if len(found) == 1:
            token, place = found[0]
            return [(token, place[1] / path, (place,))]
        below: dict[int, list[Place]] = {}
        for token, place in found:
            below.setdefault(token, []).append(place)
        return [(token, min(sum(one[1] for one in after) / path, 1.0), after) for token, after in below.items()]

    tree = grow_tree(children, places, budget, least)
    return [Branch(tree.tokens, source, tree.parents, scores=tree.scores)] if tree.tokens else []


def _chain(alignment: Alignment, source: str, budget: int, least: float) -> list[Branch]:
    """Return the draft of the common case, in which there is one place and no replacement is known."""
    place = alignment.places[0]
    tokens: list[int] = alignment.predicted[place.position : place.position + budget].tolist()
    scores: list[float] = []
    reach = place.weight
    for depth, token in enumerate(tokens):
        score = alignment.rates.of(place.run + depth)
        reach *= score
        if reach < least or token < 0:
            break
        scores.append(score)
    return [Branch(tokens[: len(scores)], source, scores=scores)] if scores else []


def _continuations(alignment: Alignment, place: Place) -> list[tuple[int, Place]]:
    """Return each token that may come next, and the place after it."""
    position, weight, run, pending = place
    if pending:
        return [(pending[0], (position, weight * PENDING, run + 1, pending[1:]))]
    if position >= len(alignment.predicted):
        return []
    token, found = int(alignment.predicted[position]), []
    if token in alignment.replacements.by_first:
        for one in alignment.replacements.at(alignment.predicted, position):
            found.append((one.new[0], (position + len(one.old), weight * one.rate, run + 1, one.new[1:])))
            weight *= 1.0 - one.rate
    if token >= 0:
        found.append((token, (position + 1, weight * alignment.rates.of(run), run + 1, ())))
    return found
