"""What steps cost, as ``auto`` asks it: by nodes, for a batch behind texts of some length, corrected while it runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.protocol import StepTime
from engine.step_cost import MEASURED_BEHIND, Seconds, StepCosts

RATE = 0.05  # of the newest step in a correction
EXTRA_RATE = 1 / 16  # of the newest step with nodes or read-backs in what such steps take more
FORGIVING = 1 / 2048  # of that, that a step without them takes back: what is never drafted is never measured
MOST = 3.0  # a correction lies within 1 / MOST and MOST: a clock that is wrong does no more harm than that
SURPRISE = 2.0  # times what was expected: what takes longer, or is as much faster, counts as that
MOST_PRICES = 256  # kept
FIRST_BUCKET = 2 * MEASURED_BEHIND  # tokens; contexts from here on have buckets of twice the one before
N_BUCKETS = 8


@dataclass(slots=True)
class Price:
    """Of a step of one batch, in seconds that were measured at the start: times ``factor`` it is what it takes now."""

    batch: int  # sequences
    wider: Seconds  # [n + 1]: with 0 to n nodes, and nothing read back
    reading: float  # more if anything is
    read_row: float  # more for every row that is
    factor: float = 1.0
    extra: float = 0.0  # more with nodes or read-backs than all this says

    @property
    def plain(self) -> float:
        """Without nodes, and nothing read back."""
        return float(self.wider[0])

    @property
    def now(self) -> float:
        """The same, as long as it takes now."""
        return self.factor * self.plain

    @property
    def share(self) -> float:
        """What every sequence has of that."""
        return self.now / self.batch


@dataclass(slots=True)
class _Correction:
    """Of the prices of one bucket."""

    factor: float = 1.0  # of all steps
    extra: float = 0.0  # as ``Price.extra``

    def observe(self, step: StepTime, price: Price) -> None:
        """Learn from what a step took: between others the same step takes longer than in a row of its like."""
        n_nodes = step.n_rows - step.n_sequences
        expected = float(price.wider[n_nodes])
        if n_nodes or step.n_read:
            expected += self.extra
        if step.n_read:
            expected += price.reading + price.read_row * step.n_read
        ratio = min(max(step.seconds / expected, self.factor / SURPRISE), self.factor * SURPRISE)
        surplus = (ratio / self.factor - 1.0) * expected
        self.factor = min(max(self.factor + RATE * (ratio - self.factor), 1.0 / MOST), MOST)
        if n_nodes or step.n_read:
            self.extra = min(max(self.extra + EXTRA_RATE * surplus, 0.0), price.plain)
        else:
            self.extra -= FORGIVING * self.extra


class Prices:
    """Prices of all batches, and one correction for every (batch, context) bucket: powers of two.

    Args:
        costs: measured step times.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._known: dict[tuple[int, int], Price] = {}
        self._may_pay: dict[tuple[int, int, int], bool] = {}
        self._corrections: dict[tuple[int, int], _Correction] = {}

    def of(self, batch: int, context: float, n_nodes: int) -> Price:
        """Of a step of ``batch`` sequences behind ``context`` tokens each, with at least 0 to ``n_nodes`` nodes."""
        place = _bucket(context)
        price = self._known.get((batch, place))
        if price is None or len(price.wider) <= n_nodes:
            if len(self._known) >= MOST_PRICES:
                self._known.clear()
            wider = self._wider(batch, place, np.arange(2 * n_nodes + 1))
            price = self._known[batch, place] = Price(batch, wider, *self._costs.read_back)
        correction = self._correction(batch, place)
        price.factor, price.extra = correction.factor, correction.extra
        return price

    def prompt_seconds(self, n_tokens: int) -> float:
        """What reading back the ids behind a prompt takes."""
        return self._costs.prompt_row * n_tokens

    def may_pay(self, batch: int, context: float, budget: int, margin: float) -> bool:
        """Whether drafts of one request or of all, up to ``budget`` nodes each, could give ``margin`` more tokens per
        second than none if every node were right, and if making them took no time."""
        key = batch, _bucket(context), budget
        known = self._may_pay.get(key)
        if known is None:
            each = np.unique(np.geomspace(1, budget, 8).astype(np.int64))
            nodes = np.union1d(each, batch * each)
            wider = self._wider(batch, key[1], np.concatenate(([0], nodes)))
            rate = (batch + nodes) / wider[1:]
            if len(self._may_pay) >= MOST_PRICES:
                self._may_pay.clear()
            known = self._may_pay[key] = bool(rate.max() > batch / wider[0] * (1.0 + margin))
        return known

    def observe(self, step: StepTime) -> None:
        """Correct the prices of its kind by what a step took."""
        price = self.of(step.n_sequences, step.context, step.n_rows - step.n_sequences)
        self._correction(step.n_sequences, _bucket(step.context)).observe(step, price)

    def _correction(self, batch: int, place: int) -> _Correction:
        known = self._corrections.get((batch.bit_length(), place))
        if known is None:
            known = self._corrections[batch.bit_length(), place] = _Correction()
        return known

    def _wider(self, batch: int, place: int, nodes: npt.NDArray[np.int64]) -> Seconds:
        """Seconds with ``nodes`` ``[n]``, ascending, of which nothing is read back."""
        context = MEASURED_BEHIND if place == 0 else FIRST_BUCKET * 1.5 * 2.0 ** (place - 1)
        reading, read_row = self._costs.read_back
        whole = self._costs.seconds(batch, batch + nodes, context)  # every row of which was read back
        read = reading + read_row * (batch + nodes)
        return np.maximum.accumulate(np.maximum(whole - read, 0.5 * whole))  # noise must not make a step free


def _bucket(context: float) -> int:
    return min((int(context) // FIRST_BUCKET).bit_length(), N_BUCKETS - 1)
