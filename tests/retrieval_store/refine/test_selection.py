"""The selection of texts."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval_store.refine.selection import (
    Budget,
    first,
    first_of_each,
    likeliest,
    repeated,
    shuffled,
    too_short,
)
from retrieval_store.refine.texts import ROW, Rows


def table(lengths: list[int], sources: list[int] | None = None, hashes: list[int] | None = None) -> Rows:
    rows = np.zeros(len(lengths), ROW)
    rows["length"] = lengths
    rows["source"] = sources or 0
    rows["hash"] = hashes or np.arange(len(lengths))
    return rows


def test_short_and_repeated_texts_are_found() -> None:
    rows = table([3, 7, 8, 900], hashes=[5, 9, 5, 5])
    assert too_short(rows, 8).tolist() == [True, True, False, False]
    assert repeated(rows).tolist() == [False, False, True, True]  # the first one stays
    assert repeated(rows[:0]).tolist() == []


def test_the_likeliest_texts_come_first_and_equal_ones_in_order() -> None:
    found = likeliest(np.array([2, 3, 5, 7, 11]), np.array([4.0, 1.5, np.inf, 1.5, 1.0]))
    assert found.tolist() == [11, 3, 7, 2]
    again = likeliest(np.array([11, 7, 5, 3, 2]), np.array([1.0, 1.5, np.nan, 1.5, 4.0]))
    assert again.tolist() == [11, 3, 7, 2]


def test_a_seed_decides_a_sample() -> None:
    candidates = np.arange(0, 400, 2)
    found = shuffled(candidates, 3)
    assert sorted(found.tolist()) == candidates.tolist()
    assert found.tolist() == shuffled(candidates, 3).tolist() != shuffled(candidates, 4).tolist()


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        (Budget(texts=2), [3, 0]),
        (Budget(texts=9), [3, 0, 1, 2]),
        (Budget(tokens=30), [3, 0]),
        (Budget(tokens=29), [3]),
        (Budget(tokens=9), []),
        (Budget(texts=1, tokens=1000), [3]),
        (Budget(texts=3, tokens=30), [3, 0]),
    ],
)
def test_a_budget_limits_texts_or_tokens(budget: Budget, kept: list[int]) -> None:
    assert first(table([20, 50, 1, 10]), np.array([3, 0, 1, 2]), budget).tolist() == kept
    for texts, tokens in ((None, None), (0, None), (None, 0), (-1, 5)):
        with pytest.raises(ValueError, match=r"budget|at least 1"):
            Budget(texts, tokens)


def test_every_source_keeps_its_share() -> None:
    rows = table([10] * 8 + [20] * 4, [2] * 8 + [0] * 4)
    order = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])  # source 2 is likelier throughout, source 1 has nothing
    assert first(rows, order, Budget(texts=6)).tolist() == [0, 1, 2, 3, 4, 5]
    assert sorted(first_of_each(rows, order, Budget(texts=6)).tolist()) == [0, 1, 2, 3, 8, 9]
    assert sorted(first_of_each(rows, order, Budget(tokens=80)).tolist()) == [0, 1, 2, 3, 8, 9]
    assert len(first_of_each(rows, order, Budget(texts=7))) == 7
    assert len(first_of_each(rows, order, Budget(texts=100))) == 12
    assert first_of_each(rows, order, Budget(texts=1)).tolist() == [0]
