"""What is asked of rows of a step behind the layers, as one int32 array for the device. NumPy only.

``[top_p, log_min_p (fp64), rows, temperatures (fp32), keys, top_k, asked]``: every array has a place for each row of a
bucket, so that recorded launches find it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.cuda.plan.items import Ints
from engine.cuda.plan.layout import BUCKETS, bucket
from engine.sampling.keys import GUMBEL_DOMAIN, NoiseKey, position_key
from engine.sampling.params import SamplingParams

DRAWN, NOTHING = -1, -2  # asked of a row: the token that is drawn there; nothing
WIDTHS = (0, 8, 16, 32, 64)  # best ids that are told of every row
MOST_BEST = WIDTHS[-1]
_NOT_DRAWN = -1.0  # a temperature


class Draw(NamedTuple):
    """Rows that tokens are drawn from alike: of one sequence, at one depth."""

    rows: NDArray[np.int64]
    params: SamplingParams
    key: NoiseKey | None  # None: the argmax decides


@dataclass(frozen=True, slots=True)
class AnswerLayout:
    """Where the arrays lie; ``n_rows`` of the bucket."""

    n_rows: int

    @property
    def top_p(self) -> slice:
        """fp64; 1 where there is no limit."""
        return self._arrays(0, 2)

    @property
    def log_min_p(self) -> slice:
        """Logarithms, fp64; -inf where there is no limit."""
        return self._arrays(2, 4)

    @property
    def rows(self) -> slice:
        """Rows of the step; 0 for rows that fill the bucket."""
        return self._arrays(4, 5)

    @property
    def temperatures(self) -> slice:
        """fp32; 0 where the argmax decides, less where nothing is drawn."""
        return self._arrays(5, 6)

    @property
    def keys(self) -> slice:
        """Of the noise, the lower halves and then the upper ones."""
        return self._arrays(6, 8)

    @property
    def top_k(self) -> slice:
        """0 where there is no limit."""
        return self._arrays(8, 9)

    @property
    def asked(self) -> slice:
        """Tokens whose log-probabilities are told beside the best ids, ``DRAWN`` or ``NOTHING``."""
        return self._arrays(9, 10)

    @property
    def size(self) -> int:
        """Ints of the whole."""
        return 10 * self.n_rows

    def _arrays(self, first: int, last: int) -> slice:
        return slice(first * self.n_rows, last * self.n_rows)


class AnswerKind(NamedTuple):
    """What decides which launches an answer takes."""

    draws: bool
    truncates: bool  # a row has top-k, top-p or min-p
    width: int  # best ids told of every row, of ``WIDTHS`` or all there are; 0: no row asks

    @property
    def columns(self) -> int:
        """Ints that are told of a row."""
        return 2 + 2 * self.width if self.width else 1


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Rows that are answered together."""

    ints: Ints  # as ``layout`` lays it out
    layout: AnswerLayout
    n_rows: int  # the others fill the bucket
    kind: AnswerKind


def width_of(n_best: int, vocab: int) -> int:
    """The width at which ``n_best`` ids, at most ``MOST_BEST``, are told."""
    return min(vocab, next(width for width in WIDTHS if width >= n_best))


def make_answer(
    rows: Sequence[int],
    draws: Sequence[Draw],
    asked: Mapping[int, int],
    width: int,
    buckets: tuple[int, ...] = BUCKETS,
) -> AnswerPlan:
    """The plan of some rows.

    Args:
        rows: of the step, at least one; the others are told by their places among these.
        draws: what is drawn where; no row twice.
        asked: of rows that are told of: a token, or ``DRAWN`` where one is drawn.
        width: best ids that are told of these, from ``width_of``.
        buckets: of rows.
    """
    layout = AnswerLayout(bucket(len(rows), buckets))
    ints = np.zeros(layout.size, np.int32)
    ints[layout.rows][: len(rows)] = rows
    ints[layout.asked] = NOTHING
    temperatures = ints[layout.temperatures].view(np.float32)
    top_p, log_min_p = ints[layout.top_p].view(np.float64), ints[layout.log_min_p].view(np.float64)
    temperatures[:], top_p[:], log_min_p[:] = _NOT_DRAWN, 1.0, -math.inf
    ints[layout.asked][list(asked)] = list(asked.values())
    keys, truncates = ints[layout.keys].view(np.uint32).reshape(2, -1), False
    for its, params, key in draws:
        temperatures[its] = params.temperature
        if key is None:
            continue
        mixed = position_key(key, GUMBEL_DOMAIN)
        keys[0, its], keys[1, its] = mixed & 0xFFFFFFFF, mixed >> 32
        if params.truncates:
            truncates = True
            ints[layout.top_k][its], top_p[its] = params.top_k, params.top_p
            log_min_p[its] = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    return AnswerPlan(ints, layout, len(rows), AnswerKind(bool(draws), truncates, width if asked else 0))


@dataclass(frozen=True, slots=True)
class Told:
    """What was told of rows, on the host: a token, the log-probability asked for, best ids, their log-probabilities.

    Numbers are int32, with the bits of fp32; where nothing else was asked for, there is the token alone.
    """

    table: Ints  # [n, columns]

    @property
    def tokens(self) -> Ints:
        """Drawn, ``[n]``."""
        return self.table[:, 0]

    @property
    def asked(self) -> NDArray[np.float32]:
        """Log-probabilities of the tokens asked for, ``[n]``."""
        return self.table.view(np.float32)[:, 1]

    @property
    def ids(self) -> Ints:
        """The best ones, ``[n, width]``."""
        return self.table[:, 2 : 1 + self.table.shape[1] // 2]

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Theirs, ``[n, width]``."""
        return self.table.view(np.float32)[:, 1 + self.table.shape[1] // 2 :]
