"""The loops of a query, compiled: finding the longest suffix of a context, and counting what followed it.

Arrays as in ``SuffixSearch``: ``text`` uint32, ``order`` unsigned, ``starts`` int64. Everything else is int64:
Numba makes a float of a signed and an unsigned number.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled, compiled_in_place
from retrieval_store.index.suffix_array import END

_Ints = npt.NDArray[Any]
_Int: TypeAlias = Any  # to Python int or np.int64, compiled int64
_END = np.uint32(END)


@compiled
def longest_suffix(
    text: _Ints, order: _Ints, starts: _Ints, context: _Ints, shortest: int, longest: int
) -> tuple[int, int, int]:
    """The longest suffix of ``context`` ``[t]`` that occurs: its length, its first place in the order, behind its last.

    The length is 0 where none of at least ``shortest`` tokens occurs.
    """
    low, high = shortest - 1, min(longest, len(context))
    first = behind = 0
    # Every part of a suffix that occurs does, too: search the length between one that does and one that does not.
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
    """The places in the order of the last ``length`` tokens of ``context``: the first, and behind the last."""
    head = np.int64(context[len(context) - length])
    if head < 0 or head >= len(starts) - 1:
        return 0, 0
    low, high = np.int64(starts[head]), np.int64(starts[head + 1])
    first = _bisect(text, order, context, length, low, high, 0)
    if first == high or _compare(text, np.int64(order[first]), context, length) != 0:
        return 0, 0
    # Most ranges are short: gallop, then search what is left.
    known, step = first, 1
    while known + step < high and _compare(text, np.int64(order[known + step]), context, length) == 0:
        known += step
        step *= 4
    return first, _bisect(text, order, context, length, known + 1, min(known + step, high), 1)


@compiled_in_place
def _bisect(text: _Ints, order: _Ints, context: _Ints, length: _Int, low: _Int, high: _Int, bound: int) -> _Int:
    """The first place from ``low`` to ``high`` that compares at least ``bound``; ``high`` if none does."""
    while low < high:
        middle = (low + high) // 2
        if _compare(text, np.int64(order[middle]), context, length) < bound:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_in_place
def _compare(text: _Ints, position: _Int, context: _Ints, length: _Int) -> int:
    """-1, 0, 1: whether the text at ``position`` is before, like or behind ``context``'s last ``length`` tokens."""
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
    """What follows the occurrences from ``first`` to ``behind``, ``samples`` of them at most, evenly spread.

    Returns:
        Tokens, parents and counts of the most frequent paths of up to ``depth`` tokens, ``[n]`` with ``n <= nodes``:
        the most frequent first, shallow first among equals, then in the order of the texts.
    """
    n_rows = min(behind - first, samples)
    tokens = np.empty(n_rows * depth, np.int64)
    parents = np.empty(n_rows * depth, np.int64)
    counts = np.empty(n_rows * depth, np.int64)
    depths = np.empty(n_rows * depth, np.int64)
    path = np.empty(depth, np.int64)  # nodes of the row before
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
    place[n] = -1  # the root's: parents -1 find it at the end
    for rank in range(len(best)):
        place[best[rank]] = rank
    return tokens[best], place[parents[best]], counts[best]


@compiled
def _most_frequent(counts: _Ints, depths: _Ints, most: int, depth: int, n: int) -> _Ints:
    """The first ``n`` by count, ``most`` first, then by depth, then as they stand: a counting sort."""
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
