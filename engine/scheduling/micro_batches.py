"""How many sequences share a step, so that every stage of a pipeline stays busy. Knows step times, no sequences.

A step of ``b`` sequences takes ``T(b)`` through all ``P`` stages, ``s = T / P`` on each. Of ``n`` sequences
``min(n, P * b)`` are in flight at a time, so a second brings

    R(b) = min(n / (P * s(b)), b / s(b)) = min(n, P * b) / T(b)

sequence-steps: the stages idle when ``b`` is too small for the pipeline to hold all sequences, and every sequence waits
for its neighbours' arithmetic when it is larger than it need be. Beyond ``ceil(n / P)`` a larger ``b`` only costs.
"""

from __future__ import annotations

import numpy as np

from engine.step_cost import Seconds, StepCosts

GOOD_ENOUGH = 0.985  # of the best rate: smaller micro-batches answer sooner, and times are measured, not known


class MicroBatches:
    """Sizes of micro-batches.

    Args:
        n_stages: of the pipeline.
        max_sequences: the most that decode together.
        costs: step times through the whole pipeline; without them sequences are split evenly, all of them in flight.
    """

    def __init__(self, n_stages: int, max_sequences: int, costs: StepCosts | None = None) -> None:
        self._n_stages = n_stages
        self._max_sequences = max_sequences
        self._costs = costs
        self._times: dict[int, Seconds] = {}  # rows per sequence -> seconds by micro-batch
        self._sizes: dict[tuple[int, int], int] = {}

    def size(self, n: int, rows: float) -> int:
        """Sequences per step (at least 1) when ``n`` decode, with ``rows`` rows of root and tree each on average."""
        if n <= self._n_stages and self._n_stages > 1:
            return 1
        even = -(-n // self._n_stages)
        if self._costs is None or even <= 1:
            return max(1, even)
        key = n, _rounded(rows)
        if key not in self._sizes:
            self._sizes[key] = self._best(*key)
        return self._sizes[key]

    def _best(self, n: int, rows: int) -> int:
        if rows not in self._times:
            assert self._costs is not None
            self._times[rows] = self._costs.by_batch(max(n, self._max_sequences), rows)
        sizes = np.arange(1, -(-n // self._n_stages) + 1)
        rates = np.minimum(n, self._n_stages * sizes) / self._times[rows][: len(sizes)]
        return int(sizes[np.argmax(rates >= GOOD_ENOUGH * rates.max())])


def _rounded(rows: float) -> int:
    """To 1, 2, 3, 4, 6, 8, 12, ...: so much finer than what it changes, so few that their times can be kept."""
    if rows < 2:
        return 1
    power = 1 << (int(rows).bit_length() - 1)
    return power if rows < 1.25 * power or power < 2 else power + power // 2 if rows < 1.75 * power else 2 * power
