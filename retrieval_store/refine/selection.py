"""Chooses the texts that a corpus keeps, by their lengths, hashes and perplexities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from retrieval_store.refine.texts import Rows

Numbers = npt.NDArray[np.int64]  # of texts
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Budget:
    """The size of a corpus in texts, in tokens, or in both: then the smaller one applies."""

    texts: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.texts is None and self.tokens is None:
            raise ValueError("a budget has neither texts nor tokens; set at least one")
        if any(number is not None and number < 1 for number in (self.texts, self.tokens)):
            raise ValueError(f"texts {self.texts} and tokens {self.tokens} must be at least 1")


Pick = Callable[[Numbers, Budget], Numbers]  # from texts in order to as many as the budget allows


def too_short(rows: Rows, shortest: int) -> Bools:
    """Return which texts have fewer than ``shortest`` tokens, ``[n]``."""
    found: Bools = rows["length"] < shortest
    return found


def repeated(rows: Rows) -> Bools:
    """Return which texts have the ids of an earlier one, ``[n]``."""
    order = np.argsort(rows["hash"], kind="stable")
    hashes = rows["hash"][order]
    found = np.zeros(len(rows), np.bool_)
    found[order[1:]] = hashes[1:] == hashes[:-1]
    return found


def likeliest(candidates: Numbers, perplexities: npt.NDArray[np.float64]) -> Numbers:
    """Sort ``candidates`` ``[n]`` by their ``perplexities`` ``[n]``, the lowest and of equals the earlier first.

    A text whose perplexity is not finite is left out.
    """
    order = np.lexsort((candidates, perplexities))
    return candidates[order[: int(np.isfinite(perplexities).sum())]]


def shuffled(candidates: Numbers, seed: int) -> Numbers:
    return np.random.default_rng(seed).permutation(candidates)


def first(rows: Rows, order: Numbers, budget: Budget) -> Numbers:
    """Return as many of the first texts of ``order`` as the budget allows."""
    order = order[: budget.texts]
    if budget.tokens is None:
        return order
    totals = np.cumsum(rows["length"][order], dtype=np.int64)
    return order[: int(np.searchsorted(totals, budget.tokens, side="right"))]


def first_of_each(rows: Rows, order: Numbers, budget: Budget, pick: Pick | None = None) -> Numbers:
    """Return the first texts of each source, or those that ``pick`` returns, up to its share of the budget.

    The share of a source is its part of the texts and tokens of ``order``.
    """
    source, lengths = rows["source"][order], rows["length"][order]
    n_sources = int(source.max(initial=0)) + 1
    texts = _shares(np.bincount(source, minlength=n_sources), budget.texts)
    tokens = _shares(np.bincount(source, lengths, n_sources).astype(np.int64), budget.tokens)
    pick = pick or partial(first, rows)
    kept = [
        pick(order[source == i], Budget(texts[i], tokens[i]))
        for i in range(n_sources)
        if texts[i] != 0 and tokens[i] != 0
    ]
    return np.concatenate([order[:0], *kept])


def _shares(sizes: Numbers, whole: int | None) -> list[int | None]:
    """Divide ``whole`` in proportion to ``sizes`` ``[n]``, rounded so that the shares sum up to it."""
    if whole is None:
        return [None] * len(sizes)
    ends = np.cumsum(sizes) * whole // max(1, int(sizes.sum()))
    return [int(share) for share in np.diff(ends, prepend=0)]
