"""Prices of steps in seconds, and the account of the time that drafting may cost.

A step is *plain* if it has no nodes and reads nothing back. Prices come from step times that were measured when the
model was loaded (``engine.step_cost``). Two corrections per bucket of batches and contexts follow the steps that run:
plain steps alone move ``factor``, by which all prices are multiplied; other steps move ``slope``, which multiplies the
cost of nodes and read-backs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.protocol import StepTime
from engine.step_cost import MEASURED_CONTEXT, Seconds, StepCosts

RATE = 1 / 16  # weight of the newest step in a correction: follows a change within some 16 steps, averages noise
LEAST_SLOPE, MOST_SLOPE = 1 / 16, 256.0  # limits of ``slope``: above 0, and low enough to recover
LEAST_NODE = 1e-4  # plain steps that a node adds at least: ``slope`` cannot follow costs that seem to be 0
LEAST_ADDED = 0.0004  # damps updates from steps whose nodes add less than 2 % (0.02 squared) of a plain step
OUTLIER = 2.0  # a step counts as at most this many times its price or less: a paused process says nothing about prices
PLAIN_EVERY = 256  # steps with drafts after which a plain one is due: costs 1/256 of what drafting saves
PLAIN_FIRST = 8  # the same before the first plain step of a bucket; it doubles with each one
LOAD_WEIGHT = (
    3.0  # plain steps: weight of the step times that were measured at load, or of the previous bucket's factor
)
FIRST_BUCKET = 2 * MEASURED_CONTEXT  # tokens; each further bucket of contexts is twice as wide
N_BUCKETS = 8  # of contexts: the last one begins at 32,768 tokens
MOST_PRICES = 256  # (batch, context) pairs kept: batches up to 256 in one bucket of contexts


class Account:
    """Stream-seconds that drafting may still lose, which bounds its loss over any period.

    Every stream-second that passes adds ``share`` of itself, the time that drafts save is added, and the time that they
    cost is subtracted. The account holds at most ``capacity`` plain steps, and is full at first. As nothing is spent
    that it does not hold, drafting loses at most ``share`` of any period and ``capacity`` plain steps, where steps take
    what their prices say. Steps that take longer leave a debt, of at most ``capacity`` too.
    """

    def __init__(self, share: float, capacity: float) -> None:
        self._share, self._capacity = share, capacity
        self._most = 0.0  # stream-seconds: small steps between large ones do not empty the account
        self._held: float | None = None  # None: nothing was added

    def room(self, step: float) -> float:
        """Return what may be lost now, where a plain step takes ``step`` stream-seconds."""
        most = max(self._capacity * step, self._most)
        return most if self._held is None else min(self._held, most)

    def add(self, passed: float, gained: float, step: float) -> None:
        """Add the stream-seconds that ``passed``, and what drafts ``gained`` in them; negative: lost."""
        after = self.room(step) + self._share * passed + gained
        self._most = max(self._capacity * step, 0.99 * self._most)
        self._held = min(max(after, -self._most), self._most)


@dataclass(slots=True)
class _Correction:
    """Corrections of one bucket."""

    factor: float
    slope: float = 1.0  # multiplies the cost of nodes and read-backs, in addition to ``factor``
    n_plain: int = 0  # plain steps observed
    since_plain: int = 0  # other steps since then

    @property
    def is_plain_due(self) -> bool:
        """Whether the next step must be plain; at first more often, until several have been averaged."""
        return self.since_plain >= min(PLAIN_FIRST << self.n_plain, PLAIN_EVERY)


@dataclass(slots=True)
class Price:
    """Price of a step of one batch."""

    batch: int  # sequences
    by_nodes: Seconds  # [n + 1]: with 0 to n nodes, without read-backs, before corrections
    reading: float  # added if anything is read back
    read_row: float  # added for every row that is read back
    factor: float = 1.0
    slope: float = 1.0

    @property
    def plain(self) -> float:
        """Seconds of a plain step."""
        return self.factor * float(self.by_nodes[0])

    def between(self, n_nodes: int, more: int) -> float:
        """Return by how much ``more`` nodes take longer than ``n_nodes``."""
        return self.factor * self.slope * float(self.by_nodes[more] - self.by_nodes[n_nodes])

    def seconds(self, n_nodes: int, n_read: int) -> float:
        """Return the seconds of a step with ``n_nodes``, of which ``n_read`` rows are read back."""
        plain, with_nodes = float(self.by_nodes[0]), float(self.by_nodes[n_nodes])
        reading = self.reading + self.read_row * n_read if n_read else 0.0
        return self.factor * (plain + self.slope * (with_nodes - plain + reading))


class Prices:
    """Prices of all batches; corrections are per bucket of batches and contexts, in powers of two."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._known: dict[tuple[int, int], Price] = {}
        self._corrections: dict[tuple[int, int], _Correction] = {}
        self._factor = 1.0  # the last one: a new bucket begins with it

    def of(self, batch: int, context: float, n_nodes: int) -> Price:
        """Return the price for ``batch`` sequences of ``context`` tokens each, with 0 to at least ``n_nodes`` nodes."""
        bucket = _bucket(context)
        price = self._known.get((batch, bucket))
        if price is None or len(price.by_nodes) <= n_nodes:
            if len(self._known) >= MOST_PRICES:
                self._known.clear()
            by_nodes = self._seconds(batch, bucket, np.arange(2 * n_nodes + 1))
            price = self._known[batch, bucket] = Price(batch, by_nodes, *self._costs.read_back)
        correction = self._correction(batch, context)
        price.factor, price.slope = correction.factor, correction.slope
        return price

    def prompt_seconds(self, n_tokens: int) -> float:
        """Return how long reading back the ids after a prompt takes."""
        return self._factor * self._costs.prompt_row * n_tokens

    def is_plain_due(self, batch: int, context: float) -> bool:
        """Return whether the next step must be plain, because the plain price may be out of date."""
        return self._correction(batch, context).is_plain_due

    def observe(self, step: StepTime, is_ours: bool = True) -> Price:
        """Correct the prices of similar steps by the time of one; return the price that was expected.

        ``is_ours`` is whether ``auto`` drafted: a plain step is due only then.
        """
        n_nodes = step.n_rows - step.n_sequences
        price = self.of(step.n_sequences, step.context, n_nodes)
        correction = self._correction(step.n_sequences, step.context)
        expected = price.seconds(n_nodes, step.n_read)
        seconds = min(max(step.seconds, expected / OUTLIER), expected * OUTLIER)
        if n_nodes or step.n_read:
            added = (expected - price.plain) / (correction.slope * price.plain)
            slope = correction.slope + RATE * (seconds - expected) / price.plain * added / (added * added + LEAST_ADDED)
            correction.slope = min(max(slope, LEAST_SLOPE), MOST_SLOPE)
            correction.since_plain = correction.since_plain + 1 if is_ours else 0
        else:
            correction.n_plain += 1
            rate = max(RATE, 1.0 / (LOAD_WEIGHT + correction.n_plain))
            correction.factor += rate * (seconds / expected - 1.0) * correction.factor
            correction.since_plain, self._factor = 0, correction.factor
        return price

    def _correction(self, batch: int, context: float) -> _Correction:
        key = batch.bit_length(), _bucket(context)
        if key not in self._corrections:
            self._corrections[key] = _Correction(self._factor)
        return self._corrections[key]

    def _seconds(self, batch: int, bucket: int, nodes: npt.NDArray[np.int64]) -> Seconds:
        """Return the seconds with ``nodes`` ``[n]``, ascending, without read-backs."""
        context = MEASURED_CONTEXT if bucket == 0 else FIRST_BUCKET * 1.5 * 2.0 ** (bucket - 1)
        reading, read_row = self._costs.read_back
        measured = self._costs.seconds(batch, batch + nodes, context)  # with read-backs of every row
        read = reading + read_row * (batch + nodes)
        taken = np.maximum.accumulate(np.maximum(measured - read, 0.5 * measured))  # noise must not make a step free
        return np.asarray(taken + LEAST_NODE * taken[0] * nodes, np.float64)


def _bucket(context: float) -> int:
    return min((int(context) // FIRST_BUCKET).bit_length(), N_BUCKETS - 1)
