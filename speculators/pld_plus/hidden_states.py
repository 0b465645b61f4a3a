"""Hidden states of one request's positions, ready to be compared: PLD+ (h) reads them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.tree import FloatArray

_Positions = npt.NDArray[np.intp]


class HiddenStates:
    """Normalised states of consecutive positions: an array that grows as positions are committed.

    Args:
        capacity: positions to make room for at first.
    """

    def __init__(self, capacity: int) -> None:
        self.first = 0  # position of the first row
        self.end = 0  # position behind the last row
        self._capacity = max(capacity, 1)
        self._rows: FloatArray = np.empty((0, 0), np.float32)

    def put(self, first: int, states: FloatArray) -> None:
        """Append ``states`` ``[n, d]`` of positions ``first`` to ``first + n - 1``.

        Rows that do not begin where the last ones ended replace them: what was missed will not come again.
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

    def cosines(self, positions: _Positions) -> FloatArray:
        """Similarity of the last row to the rows at ``positions`` ``[n]``, in [-1, 1]."""
        last = self._rows[self.end - 1 - self.first]
        similar: FloatArray = self._rows[positions - self.first] @ last
        return similar
