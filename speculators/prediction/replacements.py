"""What a text has put in the place of predicted tokens before: a renamed symbol is renamed wherever it stands."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.tree import IntArray

LONGEST = 8  # tokens of either side
MOST = 64  # replacements that are remembered
MOST_HERE = 4  # of one first token


@dataclass(slots=True)
class Replacement:
    """``old`` became ``new``, neither is empty."""

    old: tuple[int, ...]
    new: tuple[int, ...]
    hits: float = 1.0
    tried: float = 1.0

    @property
    def rate(self) -> float:
        """How likely it is where ``old`` is predicted."""
        return (self.hits + 0.5) / (self.tried + 1.0)


class Replacements:
    """The latest ``MOST`` of a request, by the first token that they replace."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[tuple[int, ...], tuple[int, ...]], Replacement] = OrderedDict()
        self.by_first: dict[int, list[Replacement]] = {}

    def add(self, old: Sequence[int], new: Sequence[int]) -> None:
        """``old`` was predicted and ``new`` was written in its place; passed over if either is empty or long."""
        if not (1 <= len(old) <= LONGEST and 1 <= len(new) <= LONGEST):
            return
        key = tuple(old), tuple(new)
        known = self._known.get(key)
        if known is None:
            if len(self._known) == MOST:
                self._drop(next(iter(self._known.values())))
            here = self.by_first.setdefault(key[0][0], [])
            if len(here) == MOST_HERE:
                self._drop(here[0])
                here = self.by_first.setdefault(key[0][0], [])
            self._known[key] = known = Replacement(*key)
            here.append(known)
        self._known.move_to_end(key)

    def at(self, predicted: IntArray, position: int) -> list[Replacement]:
        """Those of the tokens that are predicted from ``position`` on; the likeliest first."""
        here = self.by_first.get(int(predicted[position])) if self.by_first else None
        if not here:
            return []
        ahead = tuple(predicted[position : position + LONGEST].tolist())
        fits = [one for one in here if ahead[: len(one.old)] == one.old]
        return sorted(fits, key=lambda one: -one.rate)

    def passed(self, predicted: IntArray, position: int, token: int) -> None:
        """``token`` was written where ``predicted[position]`` was predicted: what it says about replacements of it."""
        for one in self.at(predicted, position):
            one.tried += 1.0
            one.hits += one.new[0] == token

    def _drop(self, one: Replacement) -> None:
        del self._known[one.old, one.new]
        here = self.by_first[one.old[0]]
        here.remove(one)
        if not here:
            del self.by_first[one.old[0]]
