"""Hidden states of one request's positions, normalised so that they can be compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.protocol import Outcome, RequestView
from engine.tree import FloatArray

Positions = npt.NDArray[np.intp]


class HiddenStates:
    """States of consecutive positions in an array that grows; ``capacity`` is its number of rows at first."""

    def __init__(self, capacity: int) -> None:
        self.first = 0  # position of the first row
        self.end = 0  # position after the last row
        self._capacity = max(capacity, 1)
        self._rows: FloatArray = np.empty((0, 0), np.float32)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Add the states of the positions that a step or a prompt chunk forwarded, if the outcome has any."""
        states = None if outcome.artefacts is None else outcome.artefacts.hidden
        if states is not None and len(states):
            # The bonus token has not been forwarded. A chunk without one reports the position where it began.
            first = len(view.context) - 1 - len(states) if outcome.tokens else outcome.prompt_start
            self.put(first, states)

    def put(self, first: int, states: FloatArray) -> None:
        """Append ``states`` ``[n, d]`` of positions ``first`` to ``first + n - 1``.

        If ``first`` is not the next position, they replace all rows: the target does not send missing states again.
        """
        if first != self.end:
            self.first = self.end = first
        used, n = self.end - self.first, len(states)
        if used + n > len(self._rows):
            grown = np.empty((max(self._capacity, 2 * (used + n)), states.shape[1]), np.float32)
            if used:
                grown[:used] = self._rows[:used]
            self._rows = grown
        norms = np.sqrt(np.einsum("ij,ij->i", states, states))[:, None]
        np.divide(states, np.maximum(norms, 1e-12), out=self._rows[used : used + n])
        self.end += n

    def cosines(self, positions: Positions) -> FloatArray:
        """Return the similarity of the last row to the rows at ``positions`` ``[n]``, in [-1, 1]."""
        similar: FloatArray = self._rows[positions - self.first] @ self._rows[self.end - 1 - self.first]
        return similar
