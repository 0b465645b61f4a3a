"""The plan of a step's answer: what rows draw and return, as one int32 array for the device. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.cuda.plan.answer_layout import AnswerLayout, PlannedDraws
from engine.cuda.plan.items import Ints
from engine.cuda.plan.layout import BUCKETS, bucket

WIDTHS = (0, 8, 16, 32, 64)  # best ids that are returned of every row
MOST_BEST = WIDTHS[-1]


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
    from engine.cuda.plan.fill_answer import ASKS, DRAWS, TRUNCATES, fill_answer  # imports Numba

    n = len(rows)
    layout = AnswerLayout(bucket(n, buckets))
    ints = np.empty(layout.size, np.int32)
    by_row = ints.reshape(-1, layout.n_rows)
    limits = ints[: layout.log_min_p.stop].view(np.float64).reshape(2, -1)
    found = fill_answer(draws, first, asked, by_row, by_row.view(np.float32), limits)
    is_run = rows[-1] - rows[0] == n - 1  # a range becomes an array faster than a list
    ints[layout.rows][:n] = np.arange(rows[0], rows[0] + n) if is_run else rows
    kind = AnswerKind(bool(found & DRAWS), bool(found & TRUNCATES), width if found & ASKS else 0)
    return AnswerPlan(ints, layout, n, kind)


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
