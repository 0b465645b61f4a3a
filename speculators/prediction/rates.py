"""How often a text goes on as predicted, by how long it has."""

from __future__ import annotations

FADE = 0.98  # of older observations of a length, per observation
PRIORS = ((0.3, 3.0), (0.7, 4.0), (0.85, 6.0), (0.93, 10.0), (0.965, 12.0), (0.98, 16.0))  # rate, and its weight
LAST = len(PRIORS) - 1


class Rates:
    """Lengths of agreement are told apart by powers of two: 0, 1, 2, 4, 8, 16 and more tokens."""

    def __init__(self) -> None:
        self._hits = [rate * weight for rate, weight in PRIORS]
        self._tried = [weight for _, weight in PRIORS]

    def of(self, run: int) -> float:
        """The probability that the next token is the predicted one behind ``run`` that were."""
        place = min(run.bit_length(), LAST)
        return self._hits[place] / self._tried[place]

    def learn(self, run: int, weight: float, agreed: float) -> None:
        """Behind ``run`` tokens that agreed, one more was written: ``agreed`` of ``weight`` says it was predicted."""
        place = min(run.bit_length(), LAST)
        fade = FADE**weight
        self._hits[place] = self._hits[place] * fade + agreed
        self._tried[place] = self._tried[place] * fade + weight

    def agreed(self, run: int, n: int) -> None:
        """Behind ``run`` tokens that agreed, ``n`` more did."""
        while n:
            span = n if run.bit_length() >= LAST else min(n, (1 << run.bit_length()) - run)
            self.learn(run, span, span)
            run, n = run + span, n - span
