"""Arrangement of an answer's plan in one int32 array, and the draws that it is made from. NumPy only.

``[top_p, log_min_p (fp64), rows, temperatures (fp32), keys, top_k, asked]``: every array has an entry for each row of
a bucket, so recorded launches find it in the same place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.cuda.plan.items import Ints

# What a row is asked for, apart from a token's log-probability: best ids only (the log-probability of token 0 is
# computed and not used), the log-probability of the token drawn there, nothing.
READ, DRAWN, NOTHING = 0, -1, -2
NOT_DRAWN = -1.0  # a temperature
ROWS, TEMPERATURES, KEYS, TOP_K, ASKED, N_LINES = 4, 5, 6, 8, 9, 10  # lines of a layout: an int32 for every row


class PlannedDraws(NamedTuple):
    """Trees in which tokens are drawn, as arrays for compiled code: at every row that a walk could pass."""

    table: NDArray[np.int64]  # [n, 5]: first row, nodes, position of the first draw, draws at most, asks for logprobs
    keys: NDArray[np.uint64]  # ``request_key`` of every tree's request, [n]
    rules: NDArray[np.float64]  # ``SamplingParams.draw_rules``, [n, 4]
    parents: Ints  # of the nodes of all trees
    probes: NDArray[np.bool_]  # whether these are probes; empty: none is
    depths: Ints  # scratch memory for the rows of the largest tree


NO_DRAWS = PlannedDraws(
    np.empty((0, 5), np.int64),
    np.empty(0, np.uint64),
    np.empty((0, 4)),
    np.empty(0, np.int32),
    np.empty(0, np.bool_),
    np.empty(0, np.int32),
)


@dataclass(frozen=True, slots=True)
class AnswerLayout:
    """Places of the arrays."""

    n_rows: int  # of the bucket

    @property
    def top_p(self) -> slice:
        """Top-p, fp64; 1 where there is no limit."""
        return self._arrays(0, 2)

    @property
    def log_min_p(self) -> slice:
        """Logarithms of min-p, fp64; -inf where there is no limit."""
        return self._arrays(2, ROWS)

    @property
    def rows(self) -> slice:
        """Numbers of the rows in the step; 0 for rows that fill the bucket."""
        return self._arrays(ROWS, TEMPERATURES)

    @property
    def temperatures(self) -> slice:
        """fp32; 0 where the argmax decides, ``NOT_DRAWN`` where nothing is drawn."""
        return self._arrays(TEMPERATURES, KEYS)

    @property
    def keys(self) -> slice:
        """Keys of the noise: their lower halves, then their upper halves."""
        return self._arrays(KEYS, TOP_K)

    @property
    def top_k(self) -> slice:
        """Top-k; 0 where there is no limit."""
        return self._arrays(TOP_K, ASKED)

    @property
    def asked(self) -> slice:
        """``READ``, the token whose log-probability is returned with the best ids, ``DRAWN`` or ``NOTHING``."""
        return self._arrays(ASKED, N_LINES)

    @property
    def size(self) -> int:
        """Length of the array."""
        return N_LINES * self.n_rows

    def _arrays(self, first: int, last: int) -> slice:
        return slice(first * self.n_rows, last * self.n_rows)
