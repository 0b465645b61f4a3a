"""Tables from the last tokens of a context to what may follow: compiled, of fixed size, never full.

Each table is four-way associative: a key has four places, and when all are taken the one that was written longest ago
gives way. Keys are 64-bit hashes of (order, last tokens); two contexts that collide cost a bad draft, never a wrong
token. Rows are taken one after the other: what a short text fills of a large table lies together, in few pages of
memory. Arrays live in named tuples because compiled code takes nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.compiled.functions import compiled, compiled_in_place
from engine.tree import FloatArray, IntArray

TAIL = 8  # tokens of a context that a key can hold; the longest order
WAYS = 4
NARROW = 8  # successors that the target table keeps of contexts longer than one token
NONE = -1  # padding of a tail, and an empty place in a row

UIntArray = npt.NDArray[np.uint64]


class Table(NamedTuple):
    """``size`` rows of ``width`` successors each; ``size`` is a power of two."""

    keys: UIntArray  # [size]; 0 is a free slot
    slots: IntArray  # [size, 2]; the row of the key, and when that was written last
    ids: IntArray  # [size, width]; NONE where there is no more
    weights: FloatArray  # [size, width]; probabilities, or counts
    orders: IntArray  # [n_orders], ascending
    has: IntArray  # [TAIL + 1]: 1 for those orders
    clock: IntArray  # [1]
    used: IntArray  # [1]: rows


def table_size(n_rows: int) -> int:
    """Rows that a table for about ``n_rows`` has."""
    return max(1 << (n_rows - 1).bit_length(), WAYS)


def make_table(n_rows: int, width: int, orders: tuple[int, ...]) -> Table:
    """An empty table for about ``n_rows`` rows."""
    size = table_size(n_rows)
    return Table(
        np.zeros(size, np.uint64),
        np.empty((size, 2), np.int32),
        np.empty((size, width), np.int32),
        np.empty((size, width), np.float32),
        np.array(orders, np.int32),
        np.array([order in orders for order in range(TAIL + 1)], np.int32),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
    )


def empty_table(table: Table) -> Table:
    """The table, with nothing in it: rows without a key are never read."""
    table.keys.fill(0)
    table.clock[0] = table.used[0] = 0
    return table


@compiled_in_place
def hash_tail(tail: IntArray, order: int) -> Any:
    """Key of the last ``order`` tokens of ``tail`` ``[TAIL]``; 0 if it has fewer."""
    if tail[TAIL - order] == NONE:
        return np.uint64(0)
    h = np.uint64(order) * np.uint64(0x9E3779B97F4A7C15)
    for i in range(TAIL - order, TAIL):
        h = (h ^ np.uint64(tail[i])) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(29)
    h *= np.uint64(0x94D049BB133111EB)
    return (h ^ (h >> np.uint64(31))) | np.uint64(1)


@compiled_in_place
def find(table: Table, key: Any) -> int:
    """Row of ``key``, or NONE."""
    first = int(key >> np.uint64(1)) & (len(table.keys) - 1) & ~(WAYS - 1)
    for slot in range(first, first + WAYS):
        if table.keys[slot] == key:
            return int(table.slots[slot, 0])
    return NONE


@compiled_in_place
def claim(table: Table, key: Any) -> int:
    """Row of ``key``; a new, empty one if it has none."""
    first = int(key >> np.uint64(1)) & (len(table.keys) - 1) & ~(WAYS - 1)
    taken = first
    for slot in range(first, first + WAYS):
        if table.keys[slot] == key:
            table.slots[slot, 1] = table.clock[0]
            return int(table.slots[slot, 0])
        if table.keys[slot] == 0:
            taken = slot
            table.slots[slot, 0] = table.used[0]
            table.used[0] += 1
            break
        if table.slots[slot, 1] < table.slots[taken, 1]:
            taken = slot
    table.keys[taken] = key
    table.slots[taken, 1] = table.clock[0]
    row = int(table.slots[taken, 0])
    for i in range(table.ids.shape[1]):
        table.ids[row, i] = NONE
    return row


@compiled_in_place
def fill_tail(tail: IntArray, context: IntArray, end: int) -> None:
    """``tail`` ``[TAIL]`` becomes the last tokens of ``context[:end]``, padded with NONE in front."""
    for i in range(TAIL):
        place = end - TAIL + i
        tail[i] = context[place] if place >= 0 else NONE


@compiled
def learn_text(table: Table, context: IntArray, first: int) -> None:
    """Count every token of ``context[first:]`` behind its contexts of all orders."""
    tail = np.empty(TAIL, np.int32)
    for end in range(max(first, 1), len(context)):
        fill_tail(tail, context, end)
        table.clock[0] += 1
        for order in table.orders:
            key = hash_tail(tail, order)
            if key == 0:
                break
            count_successor(table, claim(table, key), context[end])


@compiled_in_place
def count_successor(table: Table, row: int, token: int) -> None:
    """One more ``token`` in a row of counts; the rarest gives way when the row is full."""
    rarest = 0
    for i in range(table.ids.shape[1]):
        if table.ids[row, i] == token:
            table.weights[row, i] += 1.0
            return
        if table.ids[row, i] == NONE:
            table.ids[row, i] = token
            table.weights[row, i] = 1.0
            return
        if table.weights[row, i] < table.weights[row, rarest]:
            rarest = i
    table.ids[row, rarest] = token
    table.weights[row, rarest] = 1.0


@compiled_in_place
def put_successors(table: Table, tail: IntArray, ids: IntArray, weights: FloatArray) -> None:
    """The target's ``ids`` and their ``weights`` ``[k]`` behind a context replace what all its orders knew.

    Orders above 1 keep the best NARROW: what a long context says is concentrated, and every copy costs time.
    """
    n = min(len(ids), table.ids.shape[1])
    for order in table.orders:
        key = hash_tail(tail, order)
        if key == 0:
            break
        row = claim(table, key)
        if order > 1:
            n = min(n, NARROW)
        for i in range(n):
            table.ids[row, i] = ids[i]
            table.weights[row, i] = weights[i]
        if n < table.ids.shape[1]:
            table.ids[row, n] = NONE
