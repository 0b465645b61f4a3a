"""Compiled learning from the target's answers: successors, recent tokens, and the trust in each source."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled, compiled_in_place
from engine.tree import FloatArray, IntArray
from retrieval_store.index.addresses import Addresses
from speculators.successors.candidates import add_candidate, clear_candidates, rank_candidates
from speculators.successors.corpora import longest_match
from speculators.successors.mix import TARGET_SOURCE, SuccessorModel, corpus_row, target_row, text_row
from speculators.successors.models import model_at
from speculators.successors.table import NONE, TAIL, extend_tail, fill_tail, hash_tail, learn_text, put_successors

RECENT_WIDTH = 8  # best ids after a context that count as recent
MOST_ROWS = 3 * TAIL + 1  # that a mixture can have


@compiled
def count_text(model: Addresses, context: IntArray, n_learnt: int) -> None:
    """Count the successors in ``context[n_learnt:]``."""
    learn_text(model_at(model).text, context, n_learnt)


@compiled
def learn_prompt(
    address: Addresses, context: IntArray, start: int, ids: IntArray, weights: FloatArray, decay: float
) -> None:
    """Learn the target's best ``ids`` ``[n, k]`` after every prompt position from ``start`` on."""
    model = model_at(address)
    model.target.clock[0] += 1
    tail = np.empty(TAIL, np.int32)
    for i in range(len(ids)):
        fill_tail(tail, context, start + i + 1)
        put_successors(model.target, tail, ids[i], weights[i])
    remember_recent(model, ids[-64:], weights[-64:], decay, False)


@compiled
def learn_step(
    address: Addresses,
    context: IntArray,
    n_seen: int,
    rate: float,
    n_before: int,
    tokens: IntArray,
    parents: IntArray,
    nodes: IntArray,
    ids: IntArray,
    weights: FloatArray,
    decay: float,
    n_learnt: int,
) -> None:
    """Move trusts by ``context[n_seen:]``, learn ``ids[i]``, ``weights[i]`` after ``nodes[i]``, count the text.

    The tree of ``tokens`` and ``parents`` grew on ``context[:n_before]``; ``context[n_learnt:]`` is counted.
    """
    model = model_at(address)
    tails = np.empty((len(tokens) + 1, TAIL), np.int32)
    fill_tree_tails(tails, context, n_before, tokens, parents)
    if rate > 0.0:
        adapt_trusts(model, context, n_seen, rate)
    if len(nodes):
        model.target.clock[0] += 1
        for i in range(len(nodes)):
            put_successors(model.target, tails[nodes[i] + 1], ids[i], weights[i])
        remember_recent(model, ids, weights, decay, True)  # the most probable nodes come first
    learn_text(model.text, context, n_learnt)


@compiled_in_place
def fill_tree_tails(tails: IntArray, context: IntArray, n_before: int, tokens: IntArray, parents: IntArray) -> None:
    """Set ``tails`` to the last tokens at the root and at every node of a tree that grew on ``context[:n_before]``."""
    fill_tail(tails[0], context, n_before)
    for node in range(len(tokens)):
        extend_tail(tails[node + 1], tails[parents[node] + 1], tokens[node])


@compiled_in_place
def remember_recent(
    model: SuccessorModel, ids: IntArray, weights: FloatArray, decay: float, first_weighs_most: bool
) -> None:
    """Add the best ids of all rows to the recent tokens; the first rows weigh most, or the last ones."""
    candidates = model.candidates
    clear_candidates(candidates)
    n = len(ids)
    fade = decay**n
    for i in range(len(model.recent_ids)):
        if model.recent_ids[i] != NONE:
            add_candidate(candidates, model.recent_ids[i], model.recent_weights[i] * fade, TARGET_SOURCE)
    for place in range(n):  # the largest weights first: if room runs out, the smallest are left out
        row = place if first_weighs_most else n - 1 - place
        fade = (1.0 - decay) * decay**place
        for i in range(min(ids.shape[1], RECENT_WIDTH)):
            add_candidate(candidates, ids[row, i], weights[row, i] * fade, TARGET_SOURCE)
    for rank in range(rank_candidates(candidates, len(model.recent_ids))):
        place = candidates.ranked[rank]
        model.recent_ids[rank], model.recent_weights[rank] = candidates.ids[place], candidates.p[place]


@compiled
def adapt_trusts(model: SuccessorModel, context: IntArray, first: int, rate: float) -> None:
    """Move the trusts towards what would have predicted ``context[first:]``: one step of online EM per token."""
    tail = np.empty(TAIL, np.int32)
    orders = np.empty(MOST_ROWS, np.int32)
    columns = np.empty(MOST_ROWS, np.int32)
    p = np.empty(MOST_ROWS, np.float64)
    trusts = model.trusts
    for end in range(max(first, 1), len(context)):
        fill_tail(tail, context, end)
        n = _rows_of(model, tail, context[end], orders, columns, p)
        below = 1e-3  # probability of the token by all from row i on
        for i in range(n - 1, -1, -1):
            trust = float(trusts[orders[i], columns[i]])
            p[i], below = trust * p[i], trust * p[i] + (1.0 - trust) * below
            p[i] /= below  # probability that row i, once reached, gave the token
        reached = 1.0
        for i in range(n):
            trust = float(trusts[orders[i], columns[i]])
            moved = trust + rate * reached * (p[i] - trust)
            trusts[orders[i], columns[i]] = min(max(moved, 0.02), 0.98)
            reached *= 1.0 - p[i]


@compiled_in_place
def _rows_of(
    model: SuccessorModel,
    tail: IntArray,
    token: int,
    orders: IntArray,
    columns: IntArray,
    p: npt.NDArray[np.float64],
) -> int:
    """Set order, trust column and probability of ``token`` for all rows that a mixture has; return their number."""
    n = 0
    longest = longest_match(model.lookup, tail)
    for order in range(TAIL, -1, -1):
        follows = order <= longest and model.lookup.has[order]
        if order > 0 and not (model.text.has[order] or model.target.has[order] or follows):
            continue
        key = hash_tail(tail, order)
        if key == 0:
            continue
        orders[n : n + 3] = order
        row, total, columns[n] = text_row(model.text, order, key)
        p[n] = _weight_of(model.text.ids[row], model.text.weights[row], token) / total
        n += columns[n] != NONE
        ids, weights, total, columns[n] = target_row(model.target, model.vocabulary, tail, order, key)
        p[n] = _weight_of(ids, weights, token) / total
        n += columns[n] != NONE
        if follows:
            ids, weights, total, columns[n] = corpus_row(model.lookup, order)
            p[n] = _weight_of(ids, weights, token) / total
            n += columns[n] != NONE
    return n


@compiled_in_place
def _weight_of(ids: IntArray, weights: FloatArray, token: int) -> float:
    """Return the weight of ``token``; 0 if it is not among ``ids``."""
    for i in range(len(ids)):
        if ids[i] == token:
            return float(weights[i])
        if ids[i] == NONE:
            break
    return 0.0
