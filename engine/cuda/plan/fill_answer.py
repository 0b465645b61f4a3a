"""Writes the arrays of an answer's plan, compiled; see ``engine.cuda.plan.answer_layout``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.compiled import compiled_in_place
from engine.cuda.plan.answer_layout import (
    ASKED,
    DRAWN,
    KEYS,
    NOT_DRAWN,
    NOTHING,
    READ,
    ROWS,
    TEMPERATURES,
    TOP_K,
    PlannedDraws,
)
from engine.cuda.plan.items import Ints
from engine.sampling.keys import compiled_mix64

DRAWS, TRUNCATES, ASKS = 1, 2, 4  # bits that ``fill_answer`` returns
_FIRST, _NODES, _POSITION, _MOST, _LOGPROBS = range(5)  # columns of ``PlannedDraws.table``
_TOP_P, _LOG_MIN_P = range(2)  # lines of the limits


@compiled_in_place
def fill_answer(
    draws: PlannedDraws, first: int, asked: Ints, lines: Ints, floats: NDArray[np.float32], limits: NDArray[np.float64]
) -> int:
    """Fill an answer's plan, except for the rows' numbers in the step, which become 0; return what rows need as bits.

    Args:
        draws: for all rows of logits.
        first: number of the first answered row among all rows of logits.
        asked: what the answered rows are asked for; drawn rows are added in place.
        lines: the plan, ``[N_LINES, rows of the bucket]``.
        floats: a view of the same memory.
        limits: a view of its top-p and logarithms of min-p, ``[2, rows of the bucket]``.
    """
    lines[ROWS], lines[KEYS], lines[KEYS + 1], lines[TOP_K] = 0, 0, 0, 0
    lines[ASKED], floats[TEMPERATURES], limits[_TOP_P], limits[_LOG_MIN_P] = NOTHING, NOT_DRAWN, 1.0, -np.inf
    found = 0
    nodes_at: Any = np.int64(0)  # for a literal Numba would compile ``_fill_tree`` again
    for tree in range(len(draws.table)):
        found |= _fill_tree(draws, tree, nodes_at, first, asked, lines, floats, limits)
        nodes_at += draws.table[tree, _NODES]
    for row in range(len(asked)):
        lines[ASKED, row] = asked[row]
        found |= 0 if asked[row] == NOTHING else ASKS
    return found


@compiled_in_place
def _fill_tree(
    draws: PlannedDraws,
    tree: int,
    nodes_at: int,
    first: int,
    asked: Ints,
    lines: Ints,
    floats: NDArray[np.float32],
    limits: NDArray[np.float64],
) -> int:
    """Fill the rows of a tree that a walk could pass: no probes, and none deeper than the last token to be drawn."""
    found, root = 0, draws.table[tree, _FIRST] - first
    rules = draws.rules[tree]
    temperature, top_k, top_p, log_min_p = rules[0], rules[1], rules[2], rules[3]
    for node in range(-1, draws.table[tree, _NODES]):
        depth = 0 if node < 0 else draws.depths[draws.parents[nodes_at + node] + 1] + 1
        draws.depths[node + 1] = depth
        is_probe = node >= 0 and len(draws.probes) > 0 and draws.probes[nodes_at + node]
        row = root + 1 + node
        if is_probe or depth >= draws.table[tree, _MOST] or row < 0 or row >= len(asked):
            continue
        found |= DRAWS
        if asked[row] == READ or draws.table[tree, _LOGPROBS]:
            asked[row] = DRAWN
        floats[TEMPERATURES, row] = temperature
        if temperature > 0.0:
            key = compiled_mix64(draws.keys[tree] ^ np.uint64(draws.table[tree, _POSITION] + depth))
            lines[KEYS, row], lines[KEYS + 1, row] = np.int32(key), np.int32(key >> np.uint64(32))
            lines[TOP_K, row], limits[_TOP_P, row], limits[_LOG_MIN_P, row] = top_k, top_p, log_min_p
    if found and (top_k > 0 or top_p < 1.0 or log_min_p > -np.inf):
        found |= TRUNCATES
    return found
