"""Compiled prefetching of what the next lookups in a model read: a step of the target has emptied the caches.

A lookup reads one line of keys, one of slots, and those of a row. Waiting for them, one after another, takes most of
the time of learning and drafting. Therefore callers fetch keys and slots of a request, then its rows, and work on other
requests in between.
"""

from __future__ import annotations

from typing import Any

from engine.compiled import compiled_in_place
from engine.tree import IntArray
from retrieval_store.index.addresses import prefetch
from speculators.successors.mix import SuccessorModel
from speculators.successors.table import NONE, TAIL, Table, bucket_of, claim_to_write, find, hash_tail

_LINE = 16  # numbers of 4 bytes in a line of the cache


@compiled_in_place
def fetch_small_parts(model: SuccessorModel) -> None:
    """Fetch what every call reads: trusts, recent tokens, and the counters of the tables."""
    for place in range(0, model.trusts.size, _LINE):
        prefetch(model.trusts, place)
    for place in range(0, len(model.recent_ids), _LINE):
        prefetch(model.recent_ids, place)
        prefetch(model.recent_weights, place)
    for table in (model.text, model.target):
        prefetch(table.clock, 0)
        prefetch(table.used, 0)


@compiled_in_place
def _fetch_slots(table: Table, key: Any) -> None:
    first = bucket_of(table, key)
    prefetch(table.keys, first)
    prefetch(table.slots, 2 * first)


@compiled_in_place
def _fetch_row(table: Table, row: int) -> None:
    first = row * table.ids.shape[1]
    prefetch(table.ids, first)
    prefetch(table.weights, first)


@compiled_in_place
def fetch_slots_of_tail(model: SuccessorModel, tail: IntArray) -> None:
    """Fetch keys and slots of a context in both tables, and its row in the vocabulary."""
    for order in range(1, TAIL + 1):
        counted, answered = model.text.has[order], model.target.has[order]
        if counted or answered:
            key = hash_tail(tail, order)
            if key == 0:
                break
            if counted:
                _fetch_slots(model.text, key)
            if answered:
                _fetch_slots(model.target, key)
    last = tail[TAIL - 1]
    if 0 <= last < len(model.vocabulary.ids):
        first = last * model.vocabulary.ids.shape[1]
        prefetch(model.vocabulary.ids, first)
        prefetch(model.vocabulary.weights, first)


@compiled_in_place
def fetch_rows_of_tail(model: SuccessorModel, tail: IntArray) -> None:
    """Fetch the rows of a context in both tables."""
    for order in range(1, TAIL + 1):
        counted, answered = model.text.has[order], model.target.has[order]
        if counted or answered:
            key = hash_tail(tail, order)
            if key == 0:
                break
            row = find(model.text, key) if counted else NONE
            if row != NONE:
                _fetch_row(model.text, row)
            row = find(model.target, key) if answered else NONE
            if row != NONE:
                _fetch_row(model.target, row)


@compiled_in_place
def fetch_slots_of_tree(table: Table, tails: IntArray, n: int, keys: Any) -> None:
    """Set ``keys`` ``[n, TAIL]`` to those of all contexts in ``tails[:n]``, and fetch their slots."""
    for i in range(n):
        for place in range(len(table.orders)):
            key = hash_tail(tails[i], table.orders[place])
            keys[i, place] = key
            if key != 0:
                _fetch_slots(table, key)


@compiled_in_place
def claim_rows_of_tree(table: Table, n: int, keys: Any, rows: IntArray) -> None:
    """Set ``rows`` ``[n, TAIL]`` to those of ``keys[:n]``, NONE for none, and fetch them; the caller writes them."""
    for i in range(n):
        for place in range(len(table.orders)):
            key = keys[i, place]
            rows[i, place] = NONE
            if key != 0:
                row = claim_to_write(table, key)
                rows[i, place] = row
                _fetch_row(table, row)
