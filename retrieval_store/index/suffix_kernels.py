"""Compiled loops of a query: they find the longest suffix of a context and count what followed it.

Arrays as in ``SuffixSearch``: ``text`` uint32, ``order`` unsigned, ``starts`` int64. All other numbers are int64: Numba
turns an operation on a signed and an unsigned number into a float.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled, compiled_in_place
from retrieval_store.index.suffix_array import END

_Ints = npt.NDArray[Any]
_Int: TypeAlias = Any  # int or np.int64; int64 in compiled code
_END = np.uint32(END)


@compiled
def longest_suffix(
    text: _Ints, order: _Ints, starts: _Ints, context: _Ints, shortest: int, longest: int
) -> tuple[int, int, int]:
    """Return the length of the longest suffix of ``context`` ``[t]`` that occurs, and its range of places in the order.

    The length is 0 if no suffix of at least ``shortest`` tokens occurs. The range excludes its end.
    """
    low, high = shortest - 1, min(longest, len(context))
    first = behind = 0
    # If a suffix occurs, so do the shorter ones: a binary search finds the length.
    while low < high:
        length = (low + high + 1) // 2
        begin, end = occurrences(text, order, starts, context, length)
        if begin < end:
            low, first, behind = length, begin, end
        else:
            high = length - 1
    if first == behind:
        return 0, 0, 0
    return low, first, behind


@compiled_in_place
def occurrences(text: _Ints, order: _Ints, starts: _Ints, context: _Ints, length: _Int) -> tuple[_Int, _Int]:
    """Return the range of places in the order of the last ``length`` tokens of ``context``, without its end."""
    head = np.int64(context[len(context) - length])
    if head < 0 or head >= len(starts) - 1:
        return 0, 0
    low, high = np.int64(starts[head]), np.int64(starts[head + 1])
    first = _bisect(text, order, context, length, low, high, 0)
    if first == high or _compare(text, np.int64(order[first]), context, length) != 0:
        return 0, 0
    # Most ranges are short: gallop, then search the rest.
    known, step = first, 1
    while known + step < high and _compare(text, np.int64(order[known + step]), context, length) == 0:
        known += step
        step *= 4
    return first, _bisect(text, order, context, length, known + 1, min(known + step, high), 1)


@compiled_in_place
def _bisect(text: _Ints, order: _Ints, context: _Ints, length: _Int, low: _Int, high: _Int, bound: int) -> _Int:
    """Return the first place from ``low`` to ``high`` that compares at least ``bound``; ``high`` if none does."""
    while low < high:
        middle = (low + high) // 2
        if _compare(text, np.int64(order[middle]), context, length) < bound:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_in_place
def _compare(text: _Ints, position: _Int, context: _Ints, length: _Int) -> int:
    """Return -1, 0 or 1: the text at ``position`` is before, equal to or after ``context``'s last ``length`` tokens."""
    start = len(context) - length
    for offset in range(length):
        here, wanted = np.int64(text[position + offset]), np.int64(context[start + offset])
        if here != wanted:
            return -1 if here < wanted else 1
    return 0


@compiled
def count_continuations(
    text: _Ints, order: _Ints, first: int, behind: int, match: int, samples: int, depth: int, nodes: int
) -> tuple[_Ints, _Ints, _Ints]:
    """Count what follows at most ``samples`` of the occurrences from ``first`` to ``behind``, evenly spread.

    Returns:
        Tokens, parents and counts of the most frequent paths of up to ``depth`` tokens, ``[n]`` with ``n <= nodes``:
        the most frequent first, shallow first among equals, then in the order of the texts.
    """
    n_rows = min(behind - first, samples)
    tokens = np.empty(n_rows * depth, np.int64)
    parents = np.empty(n_rows * depth, np.int64)
    counts = np.empty(n_rows * depth, np.int64)
    depths = np.empty(n_rows * depth, np.int64)
    path = np.empty(depth, np.int64)  # nodes of the previous row
    n = n_path = 0
    for row in range(n_rows):
        position = np.int64(order[first + row * (behind - first) // n_rows]) + match
        shared = 0
        while shared < n_path and np.int64(text[position + shared]) == tokens[path[shared]]:
            counts[path[shared]] += 1
            shared += 1
        n_path = shared
        while n_path < depth and text[position + n_path] != _END:
            tokens[n], counts[n], depths[n] = text[position + n_path], 1, n_path
            parents[n] = path[n_path - 1] if n_path else -1
            path[n_path] = n
            n_path += 1
            n += 1
    best = _most_frequent(counts[:n], depths[:n], n_rows, depth, min(n, nodes))
    place = np.empty(n + 1, np.int64)
    place[n] = -1  # of the root: a parent of -1 reads the last element
    for rank in range(len(best)):
        place[best[rank]] = rank
    return tokens[best], place[parents[best]], counts[best]


@compiled
def _most_frequent(counts: _Ints, depths: _Ints, most: int, depth: int, n: int) -> _Ints:
    """Return the first ``n`` nodes by count, from ``most`` down, then by depth, then by position: a counting sort."""
    begins = np.zeros(most * depth + 1, np.int64)
    for node in range(len(counts)):
        begins[(most - counts[node]) * depth + depths[node] + 1] += 1
    for key in range(most * depth):
        begins[key + 1] += begins[key]
    best = np.empty(n, np.int64)
    for node in range(len(counts)):
        key = (most - counts[node]) * depth + depths[node]
        if begins[key] < n:
            best[begins[key]] = node
            begins[key] += 1
    return best
