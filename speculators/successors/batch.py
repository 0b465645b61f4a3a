"""Compiled learning and drafting for all requests of a step, in one call each.

The results are those of ``learning.learn_step`` and ``growth.draft`` for one request after another. Requests take
turns, so that lines of memory arrive while others are worked on (``speculators.successors.prefetch``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.best_first.arrays import NONE
from engine.compiled import compiled, compiled_in_place
from engine.tree import FloatArray, IntArray
from retrieval_store.index.addresses import opener
from speculators.successors.draws import Sampling
from speculators.successors.growth import begin_draft, find_children, finish_draft, next_row_with_tail, tree_at
from speculators.successors.learning import adapt_trusts, fill_tree_tails, remember_recent
from speculators.successors.mix import SuccessorModel
from speculators.successors.models import model_at
from speculators.successors.prefetch import (
    claim_rows_of_tree,
    fetch_rows_of_tail,
    fetch_slots_of_tail,
    fetch_slots_of_tree,
    fetch_small_parts,
)
from speculators.successors.table import TAIL, fill_tail, learn_text, write_row

ADDRESS, LENGTH, SLOT, N_LEARNT = range(4)  # columns of ``requests``: where the context lies, its model, see the state
N_SEEN, N_TOKENS, N_ROWS, N_LEARN_COLUMNS = range(4, 8)  # those for learning: see ``learn_steps``
BUDGET, N_DRAFT_COLUMNS = range(4, 6)  # those for drafting
TEMPERATURE, RECENT_TRUST = range(2)  # columns of ``settings``
TOKENS, PARENTS, PROPOSER_NUMBERS = range(3)  # rows of ``drafted``
SCORES, REACH = range(2)  # rows of ``estimates``


class Context(NamedTuple):
    """Committed tokens of a request."""

    tokens: IntArray


context_at = opener(Context(np.empty(0, np.int32)))


class LearningRoom(NamedTuple):
    """What one request keeps from stage to stage."""

    tails: IntArray  # [n_nodes + 1, TAIL]: last tokens at the root and every node
    tail: IntArray  # [TAIL]
    keys: npt.NDArray[np.uint64]  # [n_nodes + 1, TAIL]: of the contexts that end there, by order
    rows: IntArray  # [n_nodes + 1, TAIL]: their rows


@compiled
def learn_steps(
    models: npt.NDArray[np.int64],
    requests: npt.NDArray[np.int64],
    trees: IntArray,
    ids: IntArray,
    weights: FloatArray,
    rate: float,
    decay: float,
    distance: int,
) -> None:
    """Do for every request what ``learn_step`` does.

    Args:
        models: ``[n_slots, n_words]``, addresses of models.
        requests: ``[n, N_LEARN_COLUMNS]``: ``N_TOKENS`` were committed, and ``N_ROWS`` of ids were read back: none,
            or one after the root and every node.
        trees: ``[2, n_nodes]``: tokens and parents of all nodes, request by request.
        ids, weights: ``[n_rows, k]``, request by request.
        rate, decay: of trusts, and of the weight of recent tokens.
        distance: requests between two stages of one request; 0 if requests share models: one after another.
    """
    n = len(requests)
    firsts = np.zeros((n + 1, 2), np.int64)  # of the request's nodes and rows
    most = 1
    for i in range(n):
        firsts[i + 1, 0] = firsts[i, 0] + max(requests[i, N_ROWS] - 1, 0)
        firsts[i + 1, 1] = firsts[i, 1] + requests[i, N_ROWS]
        most = max(most, requests[i, N_ROWS])
    n_rooms = 3 * distance + 1
    tails, tail = np.empty((n_rooms, most, TAIL), np.int32), np.empty((n_rooms, TAIL), np.int32)
    keys, rows = np.empty((n_rooms, most, TAIL), np.uint64), np.empty((n_rooms, most, TAIL), np.int32)
    for turn in range(n + 3 * distance):
        for stage in range(4):
            i = turn - stage * distance
            if not 0 <= i < n:
                continue
            one, place = requests[i], i % n_rooms
            model, context = model_at(models[one[SLOT]]), context_at(one).tokens
            room = LearningRoom(tails[place], tail[place], keys[place], rows[place])
            if stage == 0:
                _fetch_slots(model, context, one, trees[:, firsts[i, 0] : firsts[i + 1, 0]], room)
            elif stage == 1:
                _fetch_text(model, context, one, room.tail, False)
            elif stage == 2:
                if rate > 0.0:
                    adapt_trusts(model, context, one[N_SEEN], rate)
                if one[N_ROWS]:
                    model.target.clock[0] += 1
                    claim_rows_of_tree(model.target, one[N_ROWS], room.keys, room.rows)
            else:
                first, end = firsts[i, 1], firsts[i + 1, 1]
                _write_answers(model, ids[first:end], weights[first:end], decay, room.rows)
                learn_text(model.text, context, one[N_LEARNT])


@compiled_in_place
def _fetch_slots(model: SuccessorModel, context: IntArray, one: Any, tree: IntArray, room: LearningRoom) -> None:
    """Fetch what the next stages look up."""
    fill_tree_tails(room.tails, context, len(context) - one[N_TOKENS], tree[TOKENS], tree[PARENTS])
    fetch_small_parts(model)
    fetch_slots_of_tree(model.target, room.tails, one[N_ROWS], room.keys)
    _fetch_text(model, context, one, room.tail, True)


@compiled_in_place
def _fetch_text(model: SuccessorModel, context: IntArray, one: Any, tail: IntArray, slots: bool) -> None:
    """Fetch slots or rows of the contexts before the new tokens."""
    for end in range(max(one[N_LEARNT], 1), len(context)):
        fill_tail(tail, context, end)
        if slots:
            fetch_slots_of_tail(model, tail)
        else:
            fetch_rows_of_tail(model, tail)


@compiled_in_place
def _write_answers(model: SuccessorModel, ids: IntArray, weights: FloatArray, decay: float, rows: IntArray) -> None:
    """Write ``ids[i]`` and ``weights[i]`` to the rows that were claimed for row ``i`` of the tree."""
    if len(ids) == 0:
        return
    table = model.target
    for i in range(len(ids)):
        for place in range(len(table.orders)):
            if rows[i, place] != NONE:
                write_row(table.ids, table.weights, rows[i, place], table.orders[place], ids[i], weights[i])
    remember_recent(model, ids, weights, decay, True)


@compiled
def draft_steps(
    models: npt.NDArray[np.int64],
    requests: npt.NDArray[np.int64],
    settings: npt.NDArray[np.float64],
    noise_keys: npt.NDArray[np.uint64],
    rooms: npt.NDArray[np.int64],
    least: float,
    sizes: IntArray,
    drafted: IntArray,
    estimates: FloatArray,
) -> int:
    """Do for every request what ``draft`` does; return the number of all nodes.

    Args:
        models: ``[n_slots, n_words]``, addresses of models.
        requests: ``[n, N_DRAFT_COLUMNS]``.
        settings, noise_keys: ``[n_slots, 2]`` and ``[n_slots]``: how the target draws, and the trust in recent tokens.
        rooms: ``[n or more, n_words]``, addresses of a ``SuccessorTree`` per request.
        least: path probability below which no node is drafted.
        sizes, drafted, estimates: results: ``[n]`` nodes, ``[3, n_nodes]`` and ``[2, n_nodes]``, request by request.
    """
    n = len(requests)
    rows = np.empty(n, np.int64)  # that need children; NONE: the tree is finished
    for i in range(n):
        one = requests[i]
        model, tree, context = model_at(models[one[SLOT]]), tree_at(rooms[i]), context_at(one).tokens
        learn_text(model.text, context, one[N_LEARNT])
        rows[i] = begin_draft(tree, context, one[BUDGET], least)
        if rows[i] != NONE:
            fetch_small_parts(model)
            fetch_slots_of_tail(model, tree.tails[0])
    while _grow(models, requests, settings, noise_keys, rooms, least, rows):
        pass
    total = 0
    for i in range(n):
        tree = tree_at(rooms[i])
        sizes[i] = finish_draft(tree)
        for node in range(sizes[i]):
            place = total + node
            drafted[TOKENS, place], drafted[PARENTS, place] = tree.grown.tokens[node], tree.grown.parents[node]
            drafted[PROPOSER_NUMBERS, place] = tree.proposers[node]
            estimates[SCORES, place], estimates[REACH, place] = tree.grown.scores[node], tree.grown.reach[node + 1]
        total += sizes[i]
    return int(total)


@compiled
def _grow(
    models: npt.NDArray[np.int64],
    requests: npt.NDArray[np.int64],
    settings: npt.NDArray[np.float64],
    noise_keys: npt.NDArray[np.uint64],
    rooms: npt.NDArray[np.int64],
    least: float,
    rows: npt.NDArray[np.int64],
) -> bool:
    """Find the children of one row of every unfinished tree; return whether any tree is still unfinished."""
    unfinished = False
    for i in range(len(requests)):
        if rows[i] != NONE:
            fetch_rows_of_tail(model_at(models[requests[i, SLOT]]), tree_at(rooms[i]).tails[rows[i]])
    for i in range(len(requests)):
        if rows[i] == NONE:
            continue
        one = requests[i]
        model, tree = model_at(models[one[SLOT]]), tree_at(rooms[i])
        model.recent_trust[0] = settings[one[SLOT], RECENT_TRUST]
        sampling = Sampling(settings[one[SLOT], TEMPERATURE], noise_keys[one[SLOT]])
        find_children(model, tree, rows[i], one[BUDGET], sampling, one[LENGTH])
        rows[i] = next_row_with_tail(tree, one[BUDGET], least)
        if rows[i] != NONE:
            fetch_slots_of_tail(model, tree.tails[rows[i]])
            unfinished = True
    return unfinished
