"""What followed a context in texts to look up, counted in their suffix arrays. Compiled.

Every order is searched on its own, from one token up to the first length that occurs nowhere. Occurrences of a match
are sampled evenly over all of them, so that a frequent context costs no more than a rare one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.tree import FloatArray, IntArray
from retrieval_store.index.index import Index, Suffixes
from retrieval_store.index.jit import compiled_in_place
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


class Lookup(Protocol):
    """What ``speculators.successors.mix.Model`` has for looking up."""

    @property
    def corpora(self) -> Corpora:
        """Texts to look up."""

    @property
    def vocab(self) -> int:
        """Ids that the target has."""

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """``[TAIL + 1, MOST, 2]``: places of the matches in each order, the first and behind the last."""

    @property
    def followers(self) -> IntArray:
        """``[FOLLOWERS]``."""

    @property
    def counts(self) -> FloatArray:
        """``[FOLLOWERS]``."""


@compiled_in_place
def longest_match(model: Lookup, tail: IntArray) -> int:
    """The most tokens at the end of ``tail`` ``[TAIL]`` that occur somewhere; finds ``spans`` for all up to that."""
    for order in range(1, TAIL + 1):
        occurs = False
        for i in range(MOST):
            corpus = model.corpora[i]
            first, behind = occurrences(corpus.text, corpus.order, corpus.starts, tail, order)
            model.spans[order, i, 0], model.spans[order, i, 1] = first, behind
            occurs |= first < behind
        if not occurs:
            return order - 1
    return TAIL


@compiled_in_place
def count_followers(model: Lookup, order: int) -> int:
    """What followed the matches of ``order`` tokens into ``followers`` and ``counts``; returns how many.

    Tokens that the target does not have are left out: a tokenizer may know more than the model.
    """
    n = 0
    for i in range(MOST):
        corpus = model.corpora[i]
        first, behind = model.spans[order, i, 0], model.spans[order, i, 1]
        n_rows = min(behind - first, SAMPLES)
        place = -1
        for row in range(n_rows):
            position = np.int64(corpus.order[first + row * (behind - first) // n_rows])
            token = np.int64(corpus.text[position + order])
            if token >= model.vocab:  # an end, too
                continue
            if place < 0 or model.followers[place] != token:  # suffixes are sorted: equal tokens come together
                place = 0
                while place < n and model.followers[place] != token:
                    place += 1
                if place == FOLLOWERS:
                    place = -1
                    continue
                if place == n:
                    model.followers[n], model.counts[n] = token, 0.0
                    n += 1
            model.counts[place] += 1.0
    return n


@compiled_in_place
def corpus_bucket(total: float) -> int:
    """Index of a number of occurrences: one, two or three, up to 15, more."""
    if total < 2.0:
        return 0
    if total < 4.0:
        return 1
    return 2 if total < 16.0 else 3
