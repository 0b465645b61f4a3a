"""Continuations of frequent short contexts, counted when a snapshot is written.

A context of few tokens may occur a million times, and counting what followed would take milliseconds. So for every
context of up to ``CONTEXT`` tokens that occurs at least ``FREQUENT`` times, the most frequent continuations are found
here, from the sorted suffixes and the tokens that neighbours share: a path of ``j`` tokens is a run of neighbours that
share ``j`` tokens, so the runs of every depth are all that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from retrieval_store.index.index import ROOT
from retrieval_store.index.suffix_array import Positions, Text, common_prefixes

CONTEXT = 4  # tokens
FREQUENT = 64  # occurrences
PATH = 10  # tokens of a continuation
NODES = 64  # of a context

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ContextCounts:
    """One context and its most frequent continuations; as in ``Continuations``, but without those that occur once."""

    context: npt.NDArray[np.uint32]  # [1..CONTEXT]
    counted: int
    tokens: npt.NDArray[np.uint32]  # [n], the most frequent first, shallow first among equals
    parents: _Ints  # [n]
    counts: _Ints  # [n]


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of at least two neighbours that share a number of tokens, in order."""

    starts: _Ints
    counts: _Ints
    parents: _Ints  # index of the run, among those that share one token less, that holds this one


def frequent_contexts(text: Text, order: Positions, shared: npt.NDArray[np.uint8]) -> Iterator[ContextCounts]:
    """All frequent contexts of a bucket.

    Args:
        text: the corpus.
        order: ``[n]``, a bucket of its suffix array.
        shared: ``[n]``, tokens shared with the suffix before; ``common_prefixes`` to at least ``CONTEXT + PATH``.
    """
    levels = _levels(shared)
    for length in range(1, CONTEXT + 1):
        runs = levels[length]
        for run in np.flatnonzero(runs.counts >= FREQUENT).tolist():
            yield _counted(text, order, levels, length, int(runs.starts[run]), int(runs.counts[run]))


def _levels(shared: npt.NDArray[np.uint8]) -> list[_Runs]:
    """Runs by the number of tokens they share, from 0 to ``CONTEXT + PATH``."""
    none = np.empty(0, np.int64)
    levels = [_Runs(none, none, none)]
    for depth in range(1, CONTEXT + PATH + 1):
        starts = np.flatnonzero(shared < depth)
        counts = np.diff(starts, append=len(shared))
        starts, counts = starts[counts > 1], counts[counts > 1]
        parents = np.searchsorted(levels[-1].starts, starts, side="right") - 1
        levels.append(_Runs(starts, counts, parents))
    return levels


def _counted(text: Text, order: Positions, levels: list[_Runs], length: int, start: int, count: int) -> ContextCounts:
    """The continuations of the context of ``length`` tokens whose run begins at ``start``."""
    starts, counts, parents, depths = _below(levels, length, start, start + count)
    best = np.argsort(-counts, kind="stable")[:NODES]
    # At least as frequent and shallower: a parent stands before its children, so it is among the best, too.
    place = np.full(len(counts) + 1, ROOT, np.int64)
    place[best] = np.arange(len(best))
    positions = order[starts[best]]
    return ContextCounts(
        context=np.asarray(text[int(order[start]) : int(order[start]) + length]).astype(np.uint32),
        counted=count,
        tokens=np.asarray(text[positions + depths[best] - 1]).astype(np.uint32),
        parents=place[parents[best]],
        counts=counts[best],
    )


def _below(levels: list[_Runs], length: int, start: int, behind: int) -> tuple[_Ints, _Ints, _Ints, _Ints]:
    """Runs within ``start`` to ``behind`` that share more than ``length`` tokens, shallow first.

    Returns:
        Where they start, how long they are, their parents as indices into these arrays (-1: the context), and how many
        tokens they share; ``[n]`` each.
    """
    parts: list[tuple[Any, Any, Any, Any]] = []
    above, first_above = -1, 0  # where the level above begins in the result, and in the level itself
    n = 0
    for depth in range(length + 1, length + PATH + 1):
        runs = levels[depth]
        first, last = np.searchsorted(runs.starts, (start, behind))
        if first == last:
            break
        parents = np.full(last - first, -1) if above < 0 else runs.parents[first:last] - first_above + above
        parts.append((runs.starts[first:last], runs.counts[first:last], parents, np.full(last - first, depth)))
        above, first_above = n, first
        n += last - first
    if not parts:
        none = np.empty(0, np.int64)
        return none, none, none, none
    starts, counts, parents, depths = (np.concatenate(part) for part in zip(*parts, strict=True))
    return starts, counts, parents, depths


def bucket_counts(text: Text, order: Positions, depth: int) -> tuple[list[ContextCounts], int]:
    """The frequent contexts of a bucket, and its number of different windows of ``depth`` tokens."""
    shared = common_prefixes(text, order, depth)
    return list(frequent_contexts(text, order, shared)), int(np.count_nonzero(shared < depth))
