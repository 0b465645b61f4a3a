"""Arrangement of an answer's plan in one int32 array, and the draws that it is made from. NumPy only.

``[top_p, log_min_p (fp64), rows, temperatures (fp32), keys, top_k, asked]``: every array has an entry for each row of
a bucket, so recorded launches find it in the same place.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
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
    """Trees in which tokens are drawn, as arrays for compiled code: at every row that a walk could visit."""

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


class AnswerLayout(NamedTuple):
    """Places of the arrays of a plan; made by ``arrange_answer``."""

    n_rows: int  # of the bucket
    size: int  # of the plan
    top_p: slice  # fp64; 1 where there is no limit
    log_min_p: slice  # logarithms of min-p, fp64; -inf where there is no limit
    rows: slice  # numbers of the rows in the step; 0 for rows that fill the bucket
    temperatures: slice  # fp32; 0 where the argmax decides, ``NOT_DRAWN`` where nothing is drawn
    keys: slice  # of the noise: lower halves, then upper halves
    top_k: slice  # 0 where there is no limit
    asked: slice  # ``READ``, ``DRAWN``, ``NOTHING``, or the token whose log-probability is returned with the best ids


@cache
def arrange_answer(n_rows: int) -> AnswerLayout:
    """Return the layout for a bucket of ``n_rows``."""
    lines = pairwise((0, 2, ROWS, TEMPERATURES, KEYS, TOP_K, ASKED, N_LINES))
    return AnswerLayout(n_rows, N_LINES * n_rows, *(slice(first * n_rows, last * n_rows) for first, last in lines))
