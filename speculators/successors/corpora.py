"""Compiled counts of what followed a context in a corpus, from suffix arrays.

Every order is searched on its own, from one token up to the first length that occurs nowhere. The occurrences of a
match are sampled evenly, so that a frequent context costs no more than a rare one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled_in_place
from engine.tree import FloatArray, IntArray
from retrieval_store.index.index import Index, Suffixes
from retrieval_store.index.suffix_kernels import occurrences
from speculators.successors.table import TAIL, flags_of

MOST = 6  # indexes searched: snapshot and recent additions, of a namespace and of all, and fixed ones
SAMPLES = 64  # occurrences counted per order and index
FOLLOWERS = 64  # different tokens counted after a context

Corpora = tuple[Suffixes, ...]


def _readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False  # like the arrays of an index; Numba compiles writeable ones anew
    return array


_NOTHING = Suffixes(*(_readonly(np.zeros(n, kind)) for n, kind in ((0, np.uint32), (0, np.uint32), (1, np.int64))))
NO_CORPORA: Corpora = (_NOTHING,) * MOST


def corpora_of(indexes: Sequence[Index]) -> Corpora:
    """Return the suffix arrays of the first MOST indexes, padded; indexes with 64-bit positions are left out."""
    found = tuple(suffixes for index in indexes if (suffixes := index.suffixes) is not None)
    return (*found, *NO_CORPORA)[:MOST]


class Lookup(NamedTuple):
    """Corpora, and the scratch space to search them."""

    corpora: Corpora  # those that the request may use
    vocab: int  # ids that the target has
    has: IntArray  # [TAIL + 1]: 1 for orders that are looked up
    spans: npt.NDArray[np.int64]  # [TAIL + 1, MOST, 2]: rows of the current matches, first and end
    followers: IntArray  # [FOLLOWERS]
    counts: FloatArray  # [FOLLOWERS]


def make_lookup(orders: tuple[int, ...]) -> Lookup:
    """Return a lookup without texts for contexts of ``orders`` tokens."""
    spans = np.zeros((TAIL + 1, MOST, 2), np.int64)
    return Lookup(
        NO_CORPORA, 0, flags_of(orders), spans, np.zeros(FOLLOWERS, np.int32), np.zeros(FOLLOWERS, np.float32)
    )


@compiled_in_place
def longest_match(lookup: Lookup, tail: IntArray) -> int:
    """Set ``spans`` for every order that occurs at the end of ``tail`` ``[TAIL]``; return the longest."""
    for order in range(1, TAIL + 1):
        occurs = False
        for i in range(MOST):
            corpus = lookup.corpora[i]
            first, end = occurrences(corpus.text, corpus.order, corpus.starts, tail, order)
            lookup.spans[order, i, 0], lookup.spans[order, i, 1] = first, end
            occurs |= first < end
        if not occurs:
            return order - 1
    return TAIL


@compiled_in_place
def count_followers(lookup: Lookup, order: int) -> int:
    """Set ``followers`` and ``counts`` to what followed the matches of ``order`` tokens; return their number.

    Tokens that the target does not have are left out: a tokenizer may have more.
    """
    n = 0
    for i in range(MOST):
        corpus = lookup.corpora[i]
        first, end = lookup.spans[order, i, 0], lookup.spans[order, i, 1]
        n_rows = min(end - first, SAMPLES)
        place = -1
        for row in range(n_rows):
            position = np.int64(corpus.order[first + row * (end - first) // n_rows])
            token = np.int64(corpus.text[position + order])
            if token >= lookup.vocab:  # also the end of a document
                continue
            if place < 0 or lookup.followers[place] != token:  # suffixes are sorted: equal tokens come together
                place = 0
                while place < n and lookup.followers[place] != token:
                    place += 1
                if place == FOLLOWERS:
                    place = -1
                    continue
                if place == n:
                    lookup.followers[n], lookup.counts[n] = token, 0.0
                    n += 1
            lookup.counts[place] += 1.0
    return n
