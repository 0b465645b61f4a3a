"""What followed a context in texts to look up, counted in their suffix arrays. Compiled.

Every order is searched on its own, from one token up to the first length that occurs nowhere. Occurrences of a match
are sampled evenly over all of them, so that a frequent context costs no more than a rare one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.compiled.functions import compiled_in_place
from engine.tree import FloatArray, IntArray
from retrieval_store.index.index import Index, Suffixes
from retrieval_store.index.suffix_kernels import occurrences
from speculators.successors.table import TAIL

MOST = 6  # texts asked at once: snapshot and recent additions, of a namespace and of all, and fixed ones
SAMPLES = 64  # occurrences counted per order and corpus
FOLLOWERS = 64  # different tokens counted behind a context
BUCKETS = 4  # of counts: see corpus_bucket

Corpora = tuple[Suffixes, ...]


def _readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False  # as those of an index are: to Numba another type, compiled apart
    return array


_NOTHING = Suffixes(*(_readonly(np.zeros(n, kind)) for n, kind in ((0, np.uint32), (0, np.uint32), (1, np.int64))))
NO_CORPORA: Corpora = (_NOTHING,) * MOST


def corpora_of(indexes: Sequence[Index]) -> Corpora:
    """The suffix arrays of the first indexes, always as many; one with positions of more than 32 bits is left out."""
    found = tuple(suffixes for index in indexes if (suffixes := index.suffixes) is not None)
    return (*found, *NO_CORPORA)[:MOST]


class Lookup(NamedTuple):
    """Texts to look up, and the scratch space to do it."""

    corpora: Corpora  # those that the request may
    vocab: int  # ids that the target has
    has: IntArray  # [TAIL + 1]: 1 for orders that are looked up
    spans: npt.NDArray[np.int64]  # [TAIL + 1, MOST, 2]: where the current matches are, the first and behind the last
    followers: IntArray  # [FOLLOWERS]
    counts: FloatArray  # [FOLLOWERS]


def make_lookup(orders: tuple[int, ...]) -> Lookup:
    """No texts yet, to be looked up for contexts of ``orders`` tokens."""
    has = np.array([order in orders for order in range(TAIL + 1)], np.int32)
    spans = np.zeros((TAIL + 1, MOST, 2), np.int64)
    return Lookup(NO_CORPORA, 0, has, spans, np.zeros(FOLLOWERS, np.int32), np.zeros(FOLLOWERS, np.float32))


@compiled_in_place
def longest_match(lookup: Lookup, tail: IntArray) -> int:
    """The most tokens at the end of ``tail`` ``[TAIL]`` that occur somewhere; finds ``spans`` for all up to that."""
    for order in range(1, TAIL + 1):
        occurs = False
        for i in range(MOST):
            corpus = lookup.corpora[i]
            first, behind = occurrences(corpus.text, corpus.order, corpus.starts, tail, order)
            lookup.spans[order, i, 0], lookup.spans[order, i, 1] = first, behind
            occurs |= first < behind
        if not occurs:
            return order - 1
    return TAIL


@compiled_in_place
def count_followers(lookup: Lookup, order: int) -> int:
    """What followed the matches of ``order`` tokens into ``followers`` and ``counts``; returns how many.

    Tokens that the target does not have are left out: a tokenizer may know more than the model.
    """
    n = 0
    for i in range(MOST):
        corpus = lookup.corpora[i]
        first, behind = lookup.spans[order, i, 0], lookup.spans[order, i, 1]
        n_rows = min(behind - first, SAMPLES)
        place = -1
        for row in range(n_rows):
            position = np.int64(corpus.order[first + row * (behind - first) // n_rows])
            token = np.int64(corpus.text[position + order])
            if token >= lookup.vocab:  # an end, too
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


@compiled_in_place
def corpus_bucket(total: float) -> int:
    """Index of a number of occurrences: one, two or three, up to 15, more."""
    if total < 2.0:
        return 0
    if total < 4.0:
        return 1
    return 2 if total < 16.0 else 3
