"""Growing a draft tree best first, and learning from what the target made of it. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.tree import FloatArray, IntArray
from speculators.jit import compiled
from speculators.successor_mix import Model, Sampling, mix_successors, text_bucket, weigh_draws
from speculators.successor_table import NONE, TAIL, fill_tail, find, hash_tail, put_successors

MAX_CHILDREN = 32
LIKELY = 0.5
WORTHLESS = 2e-5  # path probability of a contribution that is not worth looking at
RECENT_WIDTH = 8  # of the best ids behind a context that count as recent


class Growth(NamedTuple):
    """A tree of at most ``n`` nodes while it grows; row 0 is the root, row ``i + 1`` node ``i``."""

    tokens: IntArray  # [n]
    parents: IntArray  # [n]
    scores: FloatArray  # [n]: probability of the node once its parent is accepted
    text_share: FloatArray  # [n]: of the score, what counts gave
    reach: FloatArray  # [n + 1]: probability of the whole path
    depths: IntArray  # [n + 1]
    tails: IntArray  # [n + 1, TAIL]
    child_ids: IntArray  # [n + 1, MAX_CHILDREN], best first
    child_p: FloatArray  # [n + 1, MAX_CHILDREN]
    child_text: FloatArray  # [n + 1, MAX_CHILDREN]
    n_children: IntArray  # [n + 1]
    n_taken: IntArray  # [n + 1]


def make_growth(n: int) -> Growth:
    """Room for ``n`` nodes."""
    lists = (n + 1, MAX_CHILDREN)
    return Growth(
        tokens=np.empty(n, np.int32),
        parents=np.empty(n, np.int32),
        scores=np.empty(n, np.float32),
        text_share=np.empty(n, np.float32),
        reach=np.empty(n + 1, np.float32),
        depths=np.empty(n + 1, np.int32),
        tails=np.empty((n + 1, TAIL), np.int32),
        child_ids=np.empty(lists, np.int32),
        child_p=np.empty(lists, np.float32),
        child_text=np.empty(lists, np.float32),
        n_children=np.empty(n + 1, np.int32),
        n_taken=np.empty(n + 1, np.int32),
    )


@compiled
def expand(model: Model, growth: Growth, row: int, sampling: Sampling, position: int) -> None:
    """The most probable successors of a row of the tree, at most MAX_CHILDREN, best first."""
    least = WORTHLESS / growth.reach[row] if sampling.temperature == 0.0 else 0.0  # noise may lift any candidate
    n = mix_successors(model, growth.tails[row], least)
    weigh_draws(model, n, sampling, position)
    ids, p, text = growth.child_ids[row], growth.child_p[row], growth.child_text[row]
    kept = 0
    for i in range(n):
        value = model.p[i]
        if kept == MAX_CHILDREN:
            if value <= p[kept - 1]:
                continue
            kept -= 1
        place = kept
        while place > 0 and p[place - 1] < value:
            ids[place], p[place], text[place] = ids[place - 1], p[place - 1], text[place - 1]
            place -= 1
        ids[place], p[place], text[place] = model.ids[i], value, model.from_text[i]
        kept += 1
    growth.n_children[row] = kept


@compiled
def grow(model: Model, growth: Growth, context: IntArray, budget: int, least: float, sampling: Sampling) -> int:
    """Up to ``budget`` nodes of path probability at least ``least``, the most probable first; returns their number.

    A row is expanded when its best child could be next, taking that child's probability for LIKELY until it is known:
    most of the last nodes are thus never expanded.
    """
    fill_tail(growth.tails[0], context, len(context))
    growth.reach[0] = 1.0
    growth.depths[0] = 0
    growth.n_children[0] = NONE
    growth.n_taken[0] = 0
    node = 0
    while node < budget:
        best = _next_row(growth, node, least)
        if best == NONE:
            break
        if growth.n_children[best] == NONE:
            expand(model, growth, best, sampling, len(context) + growth.depths[best])
        else:
            _append(growth, node, best)
            node += 1
    return node


@compiled
def _next_row(growth: Growth, n_nodes: int, least: float) -> int:
    """The row whose next child is the most probable node; NONE when none is worth it."""
    best, best_reach = NONE, least
    for row in range(n_nodes + 1):
        taken = growth.n_taken[row]
        if growth.n_children[row] == NONE:
            reach = growth.reach[row] * LIKELY
        elif taken < growth.n_children[row]:
            reach = growth.reach[row] * growth.child_p[row, taken]
        else:
            continue
        if reach > best_reach:
            best, best_reach = row, reach
    return best


@compiled
def _append(growth: Growth, node: int, above: int) -> None:
    """The next child of row ``above`` becomes node ``node``."""
    taken = growth.n_taken[above]
    growth.n_taken[above] += 1
    p = growth.child_p[above, taken]
    growth.tokens[node] = growth.child_ids[above, taken]
    growth.parents[node] = above - 1
    growth.scores[node] = p
    growth.text_share[node] = growth.child_text[above, taken] / p
    row = node + 1
    growth.reach[row] = growth.reach[above] * p
    growth.depths[row] = growth.depths[above] + 1
    for i in range(1, TAIL):
        growth.tails[row, i - 1] = growth.tails[above, i]
    growth.tails[row, TAIL - 1] = growth.tokens[node]
    growth.n_children[row] = NONE
    growth.n_taken[row] = 0


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


@compiled
def remember_recent(model: Model, ids: IntArray, weights: FloatArray, decay: float) -> None:
    """The best of all rows, the last rows counting most, into the list of recent tokens."""
    model.mix[0] += 1
    n = 0
    fade = decay ** len(ids)
    for i in range(len(model.recent_ids)):
        if model.recent_ids[i] != NONE:
            n = _add_recent(model, n, model.recent_ids[i], model.recent_weights[i] * fade)
    for row in range(len(ids) - 1, -1, -1):  # the last rows first: if room runs out, what weighs least is left out
        fade = (1.0 - decay) * decay ** (len(ids) - 1 - row)
        for i in range(min(ids.shape[1], RECENT_WIDTH)):
            n = _add_recent(model, n, ids[row, i], weights[row, i] * fade)
    kept = 0
    for i in range(n):
        value = model.p[i]
        if kept == len(model.recent_ids):
            if value <= model.recent_weights[kept - 1]:
                continue
            kept -= 1
        place = kept
        while place > 0 and model.recent_weights[place - 1] < value:
            model.recent_ids[place] = model.recent_ids[place - 1]
            model.recent_weights[place] = model.recent_weights[place - 1]
            place -= 1
        model.recent_ids[place], model.recent_weights[place] = model.ids[i], value
        kept += 1


@compiled
def _add_recent(model: Model, n: int, token: int, weight: float) -> int:
    if model.mark[token] == model.mix[0]:
        model.p[model.place[token]] += weight
        return n
    if n == len(model.p):
        return n
    model.mark[token] = model.mix[0]
    model.place[token] = n
    model.ids[n] = token
    model.p[n] = weight
    return n + 1


@compiled
def adapt_trust(model: Model, context: IntArray, first: int, rate: float) -> None:
    """Move the trusts towards what would have predicted ``context[first:]``: one step of online EM per token."""
    tail = np.empty(TAIL, np.int32)
    orders = np.empty(2 * TAIL + 1, np.int32)
    kinds = np.empty(2 * TAIL + 1, np.int32)
    p = np.empty(2 * TAIL + 1, np.float64)
    for end in range(max(first, 1), len(context)):
        fill_tail(tail, context, end)
        n = _components(model, tail, context[end], orders, kinds, p)
        below = 1e-3  # of the token, by everything from component i on
        for i in range(n - 1, -1, -1):
            trust = _trust(model, orders[i], kinds[i])
            p[i], below = trust * p[i], trust * p[i] + (1.0 - trust) * below
            p[i] /= below  # probability that component i, once reached, gave the token
        reached = 1.0
        for i in range(n):
            trust = _trust(model, orders[i], kinds[i])
            moved = trust + rate * reached * (p[i] - trust)
            _set_trust(model, orders[i], kinds[i], min(max(moved, 0.02), 0.98))
            reached *= 1.0 - p[i]


@compiled
def _components(
    model: Model, tail: IntArray, token: int, orders: IntArray, kinds: IntArray, p: npt.NDArray[np.float64]
) -> int:
    """The rows that ``mix_successors`` would use, in its order, and the probability each gives ``token``."""
    n = 0
    for order in range(TAIL, 0, -1):
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
        row = find(model.target, key) if model.target.has[order] else NONE
        if row != NONE:
            orders[n], kinds[n], p[n] = order, 0, 0.0
            for i in range(model.target.ids.shape[1]):
                if model.target.ids[row, i] == NONE:
                    break
                if model.target.ids[row, i] == token:
                    p[n] = model.target.weights[row, i]
            n += 1
    return n


@compiled
def _trust(model: Model, order: int, kind: int) -> float:
    if kind == 0:
        return float(model.target_trust[order])
    return float(model.text_trust[order, (kind - 1) // 2, (kind - 1) % 2])


@compiled
def _set_trust(model: Model, order: int, kind: int, value: float) -> None:
    if kind == 0:
        model.target_trust[order] = value
    else:
        model.text_trust[order, (kind - 1) // 2, (kind - 1) % 2] = value
