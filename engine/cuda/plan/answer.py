"""The plan of a step's answer: what rows draw and return, as one int32 array for the device. NumPy and Numba only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    AnswerLayout,
    PlannedDraws,
    arrange_answer,
)
from engine.cuda.plan.items import Ints
from engine.cuda.plan.layout import BUCKETS, bucket
from engine.sampling.keys import compiled_mix64

WIDTHS = (0, 8, 16, 32, 64)  # best ids that are returned of every row
MOST_BEST = WIDTHS[-1]
_DRAWS, _TRUNCATES, _ASKS = 1, 2, 4  # bits that ``_fill_answer`` returns
_FIRST, _NODES, _POSITION, _MOST, _LOGPROBS = range(5)  # columns of ``PlannedDraws.table``
_TOP_P, _LOG_MIN_P = range(2)  # lines of the limits


class AnswerKind(NamedTuple):
    """Decides which launches an answer takes."""

    draws: bool
    truncates: bool  # a row has top-k, top-p or min-p
    width: int  # best ids returned of every row: one of ``WIDTHS`` or the whole vocabulary; 0: no row asks for any

    @property
    def columns(self) -> int:
        """Ints that are returned of a row."""
        return 2 + 2 * self.width if self.width else 1


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Rows that are answered together."""

    ints: Ints  # arranged by ``layout``
    layout: AnswerLayout
    n_rows: int  # the other rows fill the bucket
    kind: AnswerKind


def width_of(n_best: int, vocab: int) -> int:
    """Return the smallest width that has room for ``n_best`` ids, of which there are at most ``MOST_BEST``."""
    return min(vocab, next(width for width in WIDTHS if width >= n_best))


def make_answer(
    rows: Sequence[int], first: int, draws: PlannedDraws, asked: Ints, width: int, buckets: tuple[int, ...] = BUCKETS
) -> AnswerPlan:
    """Return the plan of some rows of logits.

    Args:
        rows: numbers of these rows in the step, ascending; at least one.
        first: number of the first of these rows among all rows of logits; ``draws`` counts rows like this.
        draws: for all rows of logits.
        asked: ``READ``, a token, ``DRAWN`` or ``NOTHING`` for each of these rows; drawn rows are added in place.
        width: best ids that are returned of a row that asks for something, from ``width_of``.
        buckets: numbers of rows that launches are recorded for.
    """
    n = len(rows)
    layout = arrange_answer(bucket(n, buckets))
    ints = np.empty(layout.size, np.int32)
    by_row = ints.reshape(-1, layout.n_rows)
    limits = ints[: layout.log_min_p.stop].view(np.float64).reshape(2, -1)
    found = _fill_answer(draws, first, asked, by_row, by_row.view(np.float32), limits)
    is_run = rows[-1] - rows[0] == n - 1  # a range becomes an array faster than a list
    ints[layout.rows][:n] = np.arange(rows[0], rows[0] + n) if is_run else rows
    kind = AnswerKind(bool(found & _DRAWS), bool(found & _TRUNCATES), width if found & _ASKS else 0)
    return AnswerPlan(ints, layout, n, kind)


@compiled_in_place
def _fill_answer(
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
        found |= 0 if asked[row] == NOTHING else _ASKS
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
    """Fill the rows of a tree that a walk could visit: no probes, and none deeper than the last token to be drawn."""
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
        found |= _DRAWS
        if asked[row] == READ or draws.table[tree, _LOGPROBS]:
            asked[row] = DRAWN
        floats[TEMPERATURES, row] = temperature
        if temperature > 0.0:
            key = compiled_mix64(draws.keys[tree] ^ np.uint64(draws.table[tree, _POSITION] + depth))
            lines[KEYS, row], lines[KEYS + 1, row] = np.int32(key), np.int32(key >> np.uint64(32))
            lines[TOP_K, row], limits[_TOP_P, row], limits[_LOG_MIN_P, row] = top_k, top_p, log_min_p
    if found and (top_k > 0 or top_p < 1.0 or log_min_p > -np.inf):
        found |= _TRUNCATES
    return found


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """The answer on the host: token, log-probability of the asked token, best ids, log-probabilities of these.

    All are int32 or the bits of fp32. A table of rows that ask for nothing has only tokens.
    """

    table: Ints  # [n, columns]

    @property
    def tokens(self) -> Ints:
        """Drawn tokens, ``[n]``."""
        return self.table[:, 0]

    @property
    def asked(self) -> NDArray[np.float32]:
        """Log-probabilities of the asked tokens, ``[n]``."""
        return self.table.view(np.float32)[:, 1]

    @property
    def ids(self) -> Ints:
        """Best ids, best first, ``[n, width]``."""
        return self.table[:, 2 : 1 + self.table.shape[1] // 2]

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Log-probabilities of the best ids, ``[n, width]``."""
        return self.table.view(np.float32)[:, 1 + self.table.shape[1] // 2 :]
