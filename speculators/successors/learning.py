"""Learning from the target's answers behind a tree: successors, recent tokens, trust in each table. Compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.compiled.functions import compiled, compiled_in_place
from engine.tree import FloatArray, IntArray
from speculators.successors.candidates import add_candidate
from speculators.successors.corpora import Lookup, corpus_bucket, count_followers, longest_match
from speculators.successors.mix import Model, target_row, text_bucket
from speculators.successors.table import NONE, TAIL, fill_tail, find, hash_tail, put_successors
from speculators.successors.trusts import Trusts

RECENT_WIDTH = 8  # of the best ids behind a context that count as recent


@compiled
def learn_tree(
    model: Model,
    context: IntArray,
    n_before: int,
    tokens: IntArray,
    parents: IntArray,
    nodes: IntArray,
    ids: IntArray,
    weights: FloatArray,
    decay: float,
) -> None:
    """Behind ``nodes[i]`` of a tree on ``context[:n_before]`` the target's best are ``ids[i]``, ``weights[i]``."""
    tails = np.empty((len(tokens) + 1, TAIL), np.int32)
    fill_tail(tails[0], context, n_before)
    for node in range(len(tokens)):
        for i in range(1, TAIL):
            tails[node + 1, i - 1] = tails[parents[node] + 1, i]
        tails[node + 1, TAIL - 1] = tokens[node]
    model.target.clock[0] += 1
    for i in range(len(nodes)):
        put_successors(model.target, tails[nodes[i] + 1], ids[i], weights[i])
    # Nodes come most probable first, and the last rows count most.
    remember_recent(model, np.ascontiguousarray(ids[::-1]), np.ascontiguousarray(weights[::-1]), decay)


@compiled
def learn_prompt(model: Model, context: IntArray, start: int, ids: IntArray, weights: FloatArray, decay: float) -> None:
    """The target's best behind every prompt position from ``start`` on, ``[n, k]``."""
    model.target.clock[0] += 1
    tail = np.empty(TAIL, np.int32)
    for i in range(len(ids)):
        fill_tail(tail, context, start + i + 1)
        put_successors(model.target, tail, ids[i], weights[i])
    remember_recent(model, ids[-64:], weights[-64:], decay)


@compiled_in_place
def remember_recent(model: Model, ids: IntArray, weights: FloatArray, decay: float) -> None:
    """The best of all rows, the last rows counting most, into the list of recent tokens."""
    candidates = model.candidates
    candidates.mix[0] += 1
    n = 0
    fade = decay ** len(ids)
    for i in range(len(model.recent_ids)):
        if model.recent_ids[i] != NONE:
            n = add_candidate(candidates, n, model.recent_ids[i], model.recent_weights[i] * fade, 0.0, 0.0)
    for row in range(len(ids) - 1, -1, -1):  # the last rows first: if room runs out, what weighs least is left out
        fade = (1.0 - decay) * decay ** (len(ids) - 1 - row)
        for i in range(min(ids.shape[1], RECENT_WIDTH)):
            n = add_candidate(candidates, n, ids[row, i], weights[row, i] * fade, 0.0, 0.0)
    kept = 0
    for i in range(n):
        value = candidates.p[i]
        if kept == len(model.recent_ids):
            if value <= model.recent_weights[kept - 1]:
                continue
            kept -= 1
        place = kept
        while place > 0 and model.recent_weights[place - 1] < value:
            model.recent_ids[place] = model.recent_ids[place - 1]
            model.recent_weights[place] = model.recent_weights[place - 1]
            place -= 1
        model.recent_ids[place], model.recent_weights[place] = candidates.ids[i], value
        kept += 1


@compiled
def adapt_trust(model: Model, context: IntArray, first: int, rate: float) -> None:
    """Move the trusts towards what would have predicted ``context[first:]``: one step of online EM per token."""
    tail = np.empty(TAIL, np.int32)
    orders = np.empty(3 * TAIL + 1, np.int32)
    kinds = np.empty(3 * TAIL + 1, np.int32)
    p = np.empty(3 * TAIL + 1, np.float64)
    for end in range(max(first, 1), len(context)):
        fill_tail(tail, context, end)
        n = _components(model, tail, context[end], orders, kinds, p)
        below = 1e-3  # of the token, by everything from component i on
        for i in range(n - 1, -1, -1):
            trust = _trust(model.trusts, orders[i], kinds[i])
            p[i], below = trust * p[i], trust * p[i] + (1.0 - trust) * below
            p[i] /= below  # probability that component i, once reached, gave the token
        reached = 1.0
        for i in range(n):
            trust = _trust(model.trusts, orders[i], kinds[i])
            moved = trust + rate * reached * (p[i] - trust)
            _set_trust(model.trusts, orders[i], kinds[i], min(max(moved, 0.02), 0.98))
            reached *= 1.0 - p[i]


@compiled_in_place
def _components(
    model: Model, tail: IntArray, token: int, orders: IntArray, kinds: IntArray, p: npt.NDArray[np.float64]
) -> int:
    """The rows that ``mix_successors`` would use, in its order, and the probability each gives ``token``."""
    vocabulary = model.vocabulary
    n = 0
    longest = longest_match(model.lookup, tail)
    for order in range(TAIL, 0, -1):
        follows = order <= longest and model.lookup.has[order]
        if not (model.text.has[order] or model.target.has[order] or follows):
            continue
        key = hash_tail(tail, order)
        if key == 0:
            continue
        row = find(model.text, key) if model.text.has[order] else NONE
        if row != NONE:
            total, bucket, single = text_bucket(model.text, row)
            orders[n], kinds[n], p[n] = order, 1 + 2 * bucket + single, 0.0
            for i in range(model.text.ids.shape[1]):
                if model.text.ids[row, i] == NONE:
                    break
                if model.text.ids[row, i] == token:
                    p[n] = model.text.weights[row, i] / total
            n += 1
        row, is_pair = target_row(model.target, vocabulary, tail, order, key)
        if row != NONE:
            orders[n], kinds[n] = order, 0
            if is_pair:
                p[n] = _weight_of(vocabulary.pair_ids, vocabulary.pair_weights, row, token)
            else:
                p[n] = _weight_of(model.target.ids, model.target.weights, row, token)
            n += 1
        if follows:
            n = _follower_component(model.lookup, order, token, n, orders, kinds, p)
    last = tail[TAIL - 1]
    if 0 <= last < len(vocabulary.ids):
        orders[n], kinds[n], p[n] = 0, 0, _weight_of(vocabulary.ids, vocabulary.weights, last, token)
        n += 1
    return n


@compiled_in_place
def _weight_of(ids: IntArray, weights: FloatArray, row: int, token: int) -> float:
    """The weight of ``token`` in a row; 0 if it is not there."""
    for i in range(ids.shape[1]):
        if ids[row, i] == token:
            return float(weights[row, i])
        if ids[row, i] == NONE:
            break
    return 0.0


@compiled_in_place
def _follower_component(
    lookup: Lookup, order: int, token: int, n: int, orders: IntArray, kinds: IntArray, p: npt.NDArray[np.float64]
) -> int:
    """The component that ``mix_successors`` would use of texts to look up; returns the number of components."""
    n_followers = count_followers(lookup, order)
    if n_followers == 0:
        return n
    total = 0.0
    for i in range(n_followers):
        total += lookup.counts[i]
    orders[n], kinds[n], p[n] = order, -1 - 2 * corpus_bucket(total) - (1 if n_followers == 1 else 0), 0.0
    for i in range(n_followers):
        if lookup.followers[i] == token:
            p[n] = lookup.counts[i] / total
    return n + 1


@compiled_in_place
def _trust(trusts: Trusts, order: int, kind: int) -> float:
    if kind == 0:
        return float(trusts.target[order])
    if kind < 0:
        return float(trusts.corpus[order, (-1 - kind) // 2, (-1 - kind) % 2])
    return float(trusts.text[order, (kind - 1) // 2, (kind - 1) % 2])


@compiled_in_place
def _set_trust(trusts: Trusts, order: int, kind: int, value: float) -> None:
    if kind == 0:
        trusts.target[order] = value
    elif kind < 0:
        trusts.corpus[order, (-1 - kind) // 2, (-1 - kind) % 2] = value
    else:
        trusts.text[order, (kind - 1) // 2, (kind - 1) % 2] = value
