"""Compiled code reads tuples of arrays by their addresses."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from engine.compiled import compiled_in_place
from retrieval_store.index.addresses import addresses_of, opener, prefetch


class Inner(NamedTuple):
    weights: Any
    keys: Any


class Outer(NamedTuple):
    ids: Any
    inner: Inner
    vocab: int
    corpora: tuple[Any, ...]


def outer(n, vocab=7):
    return Outer(
        np.arange(n, dtype=np.int32),
        Inner(np.arange(2.0 * n, dtype=np.float32).reshape(n, 2), np.arange(n + 1, dtype=np.uint64) << np.uint64(40)),
        vocab,
        tuple(np.full((2, n, 3), place + 0.5) for place in range(3)),
    )


EXAMPLE = outer(1)
_outer_at = opener(EXAMPLE)


@compiled_in_place
def look(addresses):
    """Something of everything, lengths too; and writes."""
    found = _outer_at(addresses)
    found.ids[0] = 99
    last = len(found.ids) - 1
    shapes = found.inner.weights.shape[1] + 10 * len(found.inner.keys) + 100 * found.corpora[2].shape[1]
    sums = found.inner.weights[last, 1] + found.corpora[1][1, last, 2]
    return shapes, sums, found.inner.keys[last + 1] >> np.uint64(40), found.vocab


@pytest.mark.parametrize("n", [1, 2, 50])
def test_compiled_code_sees_all_of_a_tuple_and_writes_to_it(n):
    values = outer(n, vocab=4096 + n)
    shapes, sums, key, vocab = look(addresses_of(values, EXAMPLE))
    assert shapes == 2 + 10 * (n + 1) + 100 * n
    assert sums == values.inner.weights[-1, 1] + values.corpora[1][1, -1, 2]
    assert (key, vocab) == (n, 4096 + n)
    assert values.ids[0] == 99


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ids": np.zeros(3, np.int64)}, TypeError, "an array of int64 with 1 dimensions where int32 with 1"),
        ({"ids": np.zeros((3, 1), np.int32)}, TypeError, "2 dimensions where int32 with 1 dimensions is expected"),
        ({"ids": np.zeros(6, np.int32)[::2]}, ValueError, "only contiguous arrays"),
        ({"ids": [1, 2]}, TypeError, "list where ndarray is expected"),
        ({"vocab": 1.5}, TypeError, "float where int is expected"),
        ({"corpora": ()}, TypeError, "tuple where tuple is expected"),
    ],
)
def test_a_value_that_compiled_code_would_misread_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        addresses_of(outer(3)._replace(**change), EXAMPLE)


@compiled_in_place
def fetch(array, place):
    prefetch(array, place)
    return array[0]


@pytest.mark.parametrize("place", [0, 5, -3, 1 << 40])
def test_a_prefetch_of_any_place_changes_nothing(place):
    assert fetch(np.arange(7, 13, dtype=np.int32), place) == 7
