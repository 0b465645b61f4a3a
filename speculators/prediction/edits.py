"""Statistics of one request's edits: how long agreement lasts, and which predicted tokens are replaced by which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.tree import IntArray

FADE = 0.98  # weight of older observations of a run length, per observation
PRIORS = ((0.3, 3.0), (0.7, 4.0), (0.85, 6.0), (0.93, 10.0), (0.965, 12.0), (0.98, 16.0))  # rate and weight
LAST = len(PRIORS) - 1
LONGEST = 8  # tokens on either side of a replacement
MOST_PER_TOKEN = 4  # replacements kept with the same first token


class AgreementRates:
    """How often the next token agrees after 0, 1, 2-3, 4-7, 8-15, and more tokens that agreed."""

    def __init__(self) -> None:
        self._hits = [rate * weight for rate, weight in PRIORS]
        self._tried = [weight for _, weight in PRIORS]

    def of(self, run: int) -> float:
        """Return the probability that the next token agrees after ``run`` tokens that did."""
        i = min(run.bit_length(), LAST)
        return self._hits[i] / self._tried[i]

    def learn(self, run: int, weight: float, agreed: float) -> None:
        """Count observations after ``run`` tokens that agreed; ``agreed`` of ``weight`` agreed, too."""
        i = min(run.bit_length(), LAST)
        fade = FADE**weight
        self._hits[i] = self._hits[i] * fade + agreed
        self._tried[i] = self._tried[i] * fade + weight

    def learn_run(self, run: int, n: int) -> None:
        """Count ``n`` more tokens that agreed after ``run``."""
        while n:
            span = n if run.bit_length() >= LAST else min(n, (1 << run.bit_length()) - run)
            self.learn(run, span, span)
            run, n = run + span, n - span


@dataclass(slots=True)
class Replacement:
    """Predicted tokens and the tokens written in their place; neither is empty."""

    old: tuple[int, ...]
    new: tuple[int, ...]
    hits: float = 1.0
    tried: float = 1.0

    @property
    def rate(self) -> float:
        """Probability that ``new`` is written where ``old`` is predicted."""
        return (self.hits + 0.5) / (self.tried + 1.0)


class Replacements:
    """The replacements of a request: a renamed symbol is renamed everywhere."""

    def __init__(self) -> None:
        self.by_first: dict[int, list[Replacement]] = {}  # first token of ``old`` -> replacements, the latest last

    def add(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Keep that ``new`` was written in place of ``old``, unless either is empty or long."""
        if not (1 <= len(old) <= LONGEST and 1 <= len(new) <= LONGEST):
            return
        same_first = self.by_first.setdefault(old[0], [])
        if all((one.old, one.new) != (tuple(old), tuple(new)) for one in same_first):
            same_first.append(Replacement(tuple(old), tuple(new)))
            del same_first[:-MOST_PER_TOKEN]

    def at(self, predicted: IntArray, position: int) -> list[Replacement]:
        """Return those of the tokens predicted from ``position`` on, the most probable first."""
        same_first = self.by_first.get(int(predicted[position]))
        if same_first is None:
            return []
        ahead = tuple(predicted[position : position + LONGEST].tolist())
        fits = [one for one in same_first if ahead[: len(one.old)] == one.old]
        return sorted(fits, key=lambda one: -one.rate)

    def learn(self, predicted: IntArray, position: int, token: int) -> None:
        """Count for replacements of ``predicted[position]`` whether ``token``, which was written, begins them."""
        for one in self.at(predicted, position):
            one.tried += 1.0
            one.hits += one.new[0] == token
