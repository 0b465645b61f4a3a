"""Drafts what is predicted at the places of an alignment."""

from __future__ import annotations

from collections.abc import Iterator

from engine.best_first import grow_tree
from engine.protocol import Branch
from speculators.prediction.alignment import PENDING, Alignment, PredictedPlace

Places = list[PredictedPlace]  # their weights add up to the path probability of the node that leads to them


def draft(alignment: Alignment, source: str, budget: int, least: float) -> list[Branch]:
    """Return at most ``budget`` nodes of path probability ``least`` and more as one branch, or nothing."""
    places = alignment.places
    if len(places) == 1 and not places[0].pending and not alignment.replacements.by_first:
        return _chain(alignment, source, budget, least)

    def children(node: int, path: float, places: Places) -> Iterator[tuple[int, float, Places]]:
        below: dict[int, Places] = {}
        for place in places:
            for token, after in _continuations(alignment, place):
                below.setdefault(token, []).append(after)
        for token, after_token in below.items():
            yield token, min(sum(place.weight for place in after_token) / path, 1.0), after_token

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


def _continuations(alignment: Alignment, place: PredictedPlace) -> Iterator[tuple[int, PredictedPlace]]:
    """Yield each token that may come next, and the place after it."""
    position, weight, run, pending = place
    if pending:
        yield pending[0], PredictedPlace(position, weight * PENDING, run + 1, pending[1:])
        return
    if position >= len(alignment.predicted):
        return
    for one in alignment.replacements.at(alignment.predicted, position):
        yield one.new[0], PredictedPlace(position + len(one.old), weight * one.rate, run + 1, one.new[1:])
        weight *= 1.0 - one.rate
    token = int(alignment.predicted[position])
    if token >= 0:
        yield token, PredictedPlace(position + 1, weight * alignment.rates.of(run), run + 1)
