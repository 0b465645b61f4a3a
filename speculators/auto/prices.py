"""Prices of steps: seconds by number of nodes, for batches and context lengths, corrected by measured steps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.protocol import StepTime
from engine.step_cost import MEASURED_CONTEXT, Seconds, StepCosts

RATE = 0.05  # weight of the newest step in a correction
EXTRA_RATE = 1 / 16  # weight of the newest step with nodes or read-backs in the extra time of such steps
EXTRA_DECAY = 1 / 2048  # decay of that extra time per step without them: steps that never occur are never measured
MOST = 3.0  # a correction is between 1 / MOST and MOST, which limits the harm of a wrong clock
OUTLIER = 2.0  # a step counts as at most this many times faster or slower than expected
MOST_PRICES = 256  # kept
FIRST_BUCKET = 2 * MEASURED_CONTEXT  # tokens; each further bucket of contexts is twice as wide
N_BUCKETS = 8


@dataclass(slots=True)
class Price:
    """Price of a step of one batch, in seconds as measured at the start; times ``factor`` in seconds of now."""

    batch: int  # sequences
    by_nodes: Seconds  # [n + 1]: with 0 to n nodes, without read-backs
    reading: float  # added if anything is read back
    read_row: float  # added for every row that is read back
    factor: float = 1.0
    extra: float = 0.0  # measured extra time of steps with nodes or read-backs

    @property
    def plain(self) -> float:
        """Price without nodes and read-backs."""
        return float(self.by_nodes[0])

    @property
    def now(self) -> float:
        """``plain`` in seconds of now."""
        return self.factor * self.plain

    @property
    def share(self) -> float:
        """The share of one sequence in ``now``."""
        return self.now / self.batch


@dataclass(slots=True)
class _Correction:
    """Correction of the prices of one bucket."""

    factor: float = 1.0  # of all steps
    extra: float = 0.0  # as ``Price.extra``

    def observe(self, step: StepTime, price: Price) -> None:
        """Adapt to the time of a step; steps between other steps take longer than the repeated steps of the start."""
        n_nodes = step.n_rows - step.n_sequences
        expected = float(price.by_nodes[n_nodes])
        if n_nodes or step.n_read:
            expected += self.extra
        if step.n_read:
            expected += price.reading + price.read_row * step.n_read
        ratio = min(max(step.seconds / expected, self.factor / OUTLIER), self.factor * OUTLIER)
        surplus = (ratio / self.factor - 1.0) * expected
        self.factor = min(max(self.factor + RATE * (ratio - self.factor), 1.0 / MOST), MOST)
        if n_nodes or step.n_read:
            self.extra = min(max(self.extra + EXTRA_RATE * surplus, 0.0), price.plain)
        else:
            self.extra -= EXTRA_DECAY * self.extra


class Prices:
    """Prices of all batches, by measured costs; corrections are per (batch, context) bucket, in powers of two."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._known: dict[tuple[int, int], Price] = {}
        self._can_gain: dict[tuple[int, int, int], bool] = {}
        self._corrections: defaultdict[tuple[int, int], _Correction] = defaultdict(_Correction)

    def of(self, batch: int, context: float, n_nodes: int) -> Price:
        """Return the price for ``batch`` sequences of ``context`` tokens each, with 0 to at least ``n_nodes`` nodes."""
        bucket = _bucket(context)
        price = self._known.get((batch, bucket))
        if price is None or len(price.by_nodes) <= n_nodes:
            if len(self._known) >= MOST_PRICES:
                self._known.clear()
            by_nodes = self._seconds(batch, bucket, np.arange(2 * n_nodes + 1))
            price = self._known[batch, bucket] = Price(batch, by_nodes, *self._costs.read_back)
        correction = self._corrections[batch.bit_length(), bucket]
        price.factor, price.extra = correction.factor, correction.extra
        return price

    def prompt_seconds(self, n_tokens: int) -> float:
        """Return how long reading back the ids after a prompt takes."""
        return self._costs.prompt_row * n_tokens

    def can_gain(self, batch: int, context: float, budget: int, margin: float) -> bool:
        """Return whether right drafts of one or all requests, made in no time, add ``margin`` to tokens per second."""
        key = batch, _bucket(context), budget
        known = self._can_gain.get(key)
        if known is None:
            each = np.unique(np.geomspace(1, budget, 8).astype(np.int64))
            nodes = np.union1d(each, batch * each)
            seconds = self._seconds(batch, key[1], np.concatenate(([0], nodes)))
            rate = (batch + nodes) / seconds[1:]
            if len(self._can_gain) >= MOST_PRICES:
                self._can_gain.clear()
            known = self._can_gain[key] = bool(rate.max() > batch / seconds[0] * (1.0 + margin))
        return known

    def observe(self, step: StepTime) -> None:
        """Correct the prices of similar steps by the time of one."""
        price = self.of(step.n_sequences, step.context, step.n_rows - step.n_sequences)
        self._corrections[step.n_sequences.bit_length(), _bucket(step.context)].observe(step, price)

    def _seconds(self, batch: int, bucket: int, nodes: npt.NDArray[np.int64]) -> Seconds:
        """Return the seconds with ``nodes`` ``[n]``, ascending, without read-backs."""
        context = MEASURED_CONTEXT if bucket == 0 else FIRST_BUCKET * 1.5 * 2.0 ** (bucket - 1)
        reading, read_row = self._costs.read_back
        measured = self._costs.seconds(batch, batch + nodes, context)  # with read-backs of every row
        read = reading + read_row * (batch + nodes)
        return np.maximum.accumulate(np.maximum(measured - read, 0.5 * measured))  # noise must not make a step free


def _bucket(context: float) -> int:
    return min((int(context) // FIRST_BUCKET).bit_length(), N_BUCKETS - 1)
