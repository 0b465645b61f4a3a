"""Compiled tables of fixed size: from the last tokens of a context to what may follow.

Each table is four-way associative: a key has four slots, and if all are taken the one written longest ago is replaced.
Keys are 64-bit hashes of the order (number of tokens) and the last tokens. A collision costs a bad draft, never a wrong
token. Rows are handed out in sequence, so that a short text uses few memory pages of a large table.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled, compiled_in_place
from engine.tree import FloatArray, IntArray

ARENA_LINE = 64  # bytes of a line of the cache: rows of 64 bytes lie in one


class Arena:
    """Hands out arrays, one after another, from one piece of memory of ``n_bytes``.

    Lookups in a table touch lines all over it. With pages of 4 KiB nearly all of them miss the TLB, too, and the first
    write to each page of new memory takes 3 us. NumPy asks the kernel for huge pages if an array has at least 4 MiB.
    Therefore all tables of a model share one array.

    Raises:
        ValueError: there is no room for an array.
    """

    def __init__(self, n_bytes: int) -> None:
        memory = np.empty(n_bytes + ARENA_LINE, np.uint8)
        first = -memory.__array_interface__["data"][0] % ARENA_LINE
        self._memory = memory[first : first + n_bytes]
        self._used = 0

    def take(self, shape: tuple[int, ...], kind: Any) -> npt.NDArray[Any]:
        """Return an array with arbitrary values."""
        n = math.prod(shape) * np.dtype(kind).itemsize
        array: npt.NDArray[Any] = self._memory[self._used : self._used + n].view(kind).reshape(shape)
        self._used += -(-n // ARENA_LINE) * ARENA_LINE
        return array


TAIL = 8  # tokens of a context that a key can hold; the longest order
WAYS = 4
NARROW = 8  # successors that the target's table keeps for contexts longer than one token
NONE = -1  # padding of a tail, and the end of a row


class Table(NamedTuple):
    """``size`` rows of ``width`` successors each; ``size`` is a power of two."""

    keys: npt.NDArray[np.uint64]  # [size]; 0 is a free slot
    slots: IntArray  # [size, 2]; the row of the key, and the clock at its last write
    ids: IntArray  # [size, width]; a row ends at NONE
    weights: FloatArray  # [size, width]; probabilities, or counts
    orders: IntArray  # [n_orders], ascending
    has: IntArray  # [TAIL + 1]: 1 for those orders
    clock: IntArray  # [1]
    used: IntArray  # [1]: rows


def table_size(n_rows: int) -> int:
    """Return the size of a table for about ``n_rows`` rows."""
    return max(1 << (n_rows - 1).bit_length(), WAYS)


def flags_of(orders: tuple[int, ...]) -> IntArray:
    """Return an array ``[TAIL + 1]`` with 1 for the given orders."""
    return np.array([order in orders for order in range(TAIL + 1)], np.int32)


def bytes_of_table(n_rows: int, width: int) -> int:
    """Return the bytes of an arena that a table takes."""
    return table_size(n_rows) * (16 + 8 * width) + 4 * ARENA_LINE


def make_table(n_rows: int, width: int, orders: tuple[int, ...], arena: Arena | None = None) -> Table:
    """Return an empty table for about ``n_rows`` rows."""
    size = table_size(n_rows)
    arena = arena or Arena(bytes_of_table(n_rows, width))
    keys = arena.take((size,), np.uint64)
    keys.fill(0)
    return Table(
        keys=keys,
        slots=arena.take((size, 2), np.int32),
        ids=arena.take((size, width), np.int32),
        weights=arena.take((size, width), np.float32),
        orders=np.array(orders, np.int32),
        has=flags_of(orders),
        clock=np.zeros(1, np.int32),
        used=np.zeros(1, np.int32),
    )


def clear_table(table: Table) -> None:
    """Remove all keys; rows without a key are never read."""
    table.keys.fill(0)
    table.clock[0] = table.used[0] = 0


@compiled_in_place
def hash_tail(tail: IntArray, order: int) -> Any:
    """Return the key of the last ``order`` tokens of ``tail`` ``[TAIL]``; 0 if it has fewer."""
    if order > 0 and tail[TAIL - order] == NONE:
        return np.uint64(0)
    h = np.uint64(order) * np.uint64(0x9E3779B97F4A7C15)
    for i in range(TAIL - order, TAIL):
        h = (h ^ np.uint64(tail[i])) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(29)
    h *= np.uint64(0x94D049BB133111EB)
    return (h ^ (h >> np.uint64(31))) | np.uint64(1)


@compiled_in_place
def bucket_of(table: Table, key: Any) -> int:
    """Return the first of the WAYS slots that may hold ``key``."""
    return int(key >> np.uint64(1)) & (len(table.keys) - 1) & ~(WAYS - 1)


@compiled_in_place
def find(table: Table, key: Any) -> int:
    """Return the row of ``key``, or NONE."""
    first = bucket_of(table, key)
    for slot in range(first, first + WAYS):
        if table.keys[slot] == key:
            return int(table.slots[slot, 0])
    return NONE


@compiled_in_place
def _place(table: Table, key: Any) -> Any:
    """Return (row of ``key``, whether it was added); the successors of an added row are those of another key."""
    first = bucket_of(table, key)
    taken = first
    for slot in range(first, first + WAYS):
        if table.keys[slot] == key:
            table.slots[slot, 1] = table.clock[0]
            return int(table.slots[slot, 0]), False
        if table.keys[slot] == 0:
            taken = slot
            table.slots[slot, 0] = table.used[0]
            table.used[0] += 1
            break
        if table.slots[slot, 1] < table.slots[taken, 1]:
            taken = slot
    table.keys[taken] = key
    table.slots[taken, 1] = table.clock[0]
    return int(table.slots[taken, 0]), True


@compiled_in_place
def claim(table: Table, key: Any) -> int:
    """Return the row of ``key``; add an empty one if it has none."""
    row, added = _place(table, key)
    if added:
        for i in range(table.ids.shape[1]):
            table.ids[row, i] = NONE
    return int(row)


@compiled_in_place
def claim_to_write(table: Table, key: Any) -> int:
    """Return the row of ``key``, added if it has none; the caller replaces its successors (``write_row``)."""
    row, _ = _place(table, key)
    return int(row)


@compiled_in_place
def write_row(
    all_ids: IntArray, all_weights: FloatArray, row: int, order: int, ids: IntArray, weights: FloatArray
) -> None:
    """Set the row of a context of ``order`` tokens to ``ids`` and ``weights`` ``[k]``, best first.

    It takes two arrays instead of their table, whose other arrays would take longer to pass than the copy.

    Orders above 1 keep the best NARROW: successors of a long context are few, and every copy costs time.
    """
    width = all_ids.shape[1]
    n = min(len(ids), width)
    if order > 1:
        n = min(n, NARROW)
    for i in range(n):
        all_ids[row, i] = ids[i]
    for i in range(n):
        all_weights[row, i] = weights[i]
    if n < width:
        all_ids[row, n] = NONE


@compiled_in_place
def fill_tail(tail: IntArray, context: IntArray, end: int) -> None:
    """Set ``tail`` ``[TAIL]`` to the last tokens of ``context[:end]``, padded with NONE at the front."""
    for i in range(TAIL):
        place = end - TAIL + i
        tail[i] = context[place] if place >= 0 else NONE


@compiled_in_place
def extend_tail(tail: IntArray, above: IntArray, token: int) -> None:
    """Set ``tail`` to the tail ``above`` followed by ``token``."""
    for i in range(1, TAIL):
        tail[i - 1] = above[i]
    tail[TAIL - 1] = token


@compiled
def learn_text(table: Table, context: IntArray, first: int) -> None:
    """Count every token of ``context[first:]`` as a successor of its contexts of all orders."""
    tail = np.empty(TAIL, np.int32)
    for end in range(max(first, 1), len(context)):
        fill_tail(tail, context, end)
        table.clock[0] += 1
        for order in table.orders:
            key = hash_tail(tail, order)
            if key == 0:
                break
            _count_successor(table, claim(table, key), context[end])


@compiled_in_place
def _count_successor(table: Table, row: int, token: int) -> None:
    """Count ``token`` in a row; in a full row it replaces the rarest."""
    rarest = 0
    for i in range(table.ids.shape[1]):
        if table.ids[row, i] == token:
            table.weights[row, i] += 1.0
            return
        if table.ids[row, i] == NONE:
            rarest = i
            break
        if table.weights[row, i] < table.weights[row, rarest]:
            rarest = i
    table.ids[row, rarest] = token
    table.weights[row, rarest] = 1.0


@compiled_in_place
def put_successors(table: Table, tail: IntArray, ids: IntArray, weights: FloatArray) -> None:
    """Replace the rows of a context in all orders by the target's ``ids`` and ``weights`` ``[k]``, best first."""
    for order in table.orders:
        key = hash_tail(tail, order)
        if key == 0:
            break
        write_row(table.ids, table.weights, claim_to_write(table, key), order, ids, weights)
