"""Growing a draft tree best first. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.compiled.functions import compiled_in_place
from engine.tree import FloatArray, IntArray
from speculators.successors.draws import Sampling, weigh_draws
from speculators.successors.mix import Model, mix_successors
from speculators.successors.table import NONE, TAIL, fill_tail

Doubles = npt.NDArray[np.float64]
MAX_CHILDREN = 32
LIKELY = 0.5
WORTHLESS = 2e-5  # path probability of a contribution that is not worth looking at


class Growth(NamedTuple):
    """A tree of at most ``n`` nodes while it grows; row 0 is the root, row ``i + 1`` node ``i``."""

    tokens: IntArray  # [n]
    parents: IntArray  # [n]
    scores: FloatArray  # [n]: probability of the node once its parent is accepted
    text_share: FloatArray  # [n]: of the score, what counts of the text gave
    corpus_share: FloatArray  # [n]: of the score, what texts to look up gave
    proposers: IntArray  # [n]: see ``speculators.successors.calls``
    reach: FloatArray  # [n + 1]: probability of the whole path
    depths: IntArray  # [n + 1]
    tails: IntArray  # [n + 1, TAIL]
    child_ids: IntArray  # [n + 1, MAX_CHILDREN], best first
    child_p: FloatArray  # [n + 1, MAX_CHILDREN]
    child_text: FloatArray  # [n + 1, MAX_CHILDREN]
    child_corpus: FloatArray  # [n + 1, MAX_CHILDREN]
    n_children: IntArray  # [n + 1]
    n_taken: IntArray  # [n + 1]
    following: Doubles  # [n + 1]: path probability of the node that would come of the row next; 0: none


def make_growth(n: int) -> Growth:
    """Room for ``n`` nodes."""
    lists = (n + 1, MAX_CHILDREN)
    return Growth(
        tokens=np.empty(n, np.int32),
        parents=np.empty(n, np.int32),
        scores=np.empty(n, np.float32),
        text_share=np.empty(n, np.float32),
        corpus_share=np.empty(n, np.float32),
        proposers=np.empty(n, np.int32),
        reach=np.empty(n + 1, np.float32),
        depths=np.empty(n + 1, np.int32),
        tails=np.empty((n + 1, TAIL), np.int32),
        child_ids=np.empty(lists, np.int32),
        child_p=np.empty(lists, np.float32),
        child_text=np.empty(lists, np.float32),
        child_corpus=np.empty(lists, np.float32),
        n_children=np.empty(n + 1, np.int32),
        n_taken=np.empty(n + 1, np.int32),
        following=np.empty(n + 1, np.float64),
    )


@compiled_in_place
def expand(model: Model, growth: Growth, row: int, sampling: Sampling, position: int) -> None:
    """The most probable successors of a row of the tree, at most MAX_CHILDREN, best first."""
    least = WORTHLESS / growth.reach[row] if sampling.temperature == 0.0 else 0.0  # noise may lift any candidate
    n = mix_successors(model, growth.tails[row], least)
    candidates = model.candidates
    weigh_draws(candidates, n, sampling, position)
    ids, p, text, corpus = growth.child_ids, growth.child_p, growth.child_text, growth.child_corpus
    kept = 0
    for i in range(n):
        value = candidates.p[i]
        if kept == MAX_CHILDREN:
            if value <= p[row, kept - 1]:
                continue
            kept -= 1
        place = kept
        while place > 0 and p[row, place - 1] < value:
            ids[row, place] = ids[row, place - 1]
            p[row, place] = p[row, place - 1]
            text[row, place] = text[row, place - 1]
            corpus[row, place] = corpus[row, place - 1]
            place -= 1
        ids[row, place], p[row, place] = candidates.ids[i], value
        text[row, place], corpus[row, place] = candidates.from_text[i], candidates.from_corpus[i]
        kept += 1
    growth.n_children[row] = kept


@compiled_in_place
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
    _note_following(growth, 0)
    node = 0
    while node < budget:
        best = _next_row(growth, node, least)
        if best == NONE:
            break
        if growth.n_children[best] == NONE:
            expand(model, growth, best, sampling, len(context) + growth.depths[best])
            _note_following(growth, best)
        else:
            _append(growth, node, best)
            node += 1
    return node


@compiled_in_place
def _next_row(growth: Growth, n_nodes: int, least: float) -> int:
    """The row whose next child is the most probable node; NONE when none is worth it."""
    best, best_reach = NONE, least
    for row in range(n_nodes + 1):
        if growth.following[row] > best_reach:
            best, best_reach = row, growth.following[row]
    return best


@compiled_in_place
def _note_following(growth: Growth, row: int) -> None:
    taken = growth.n_taken[row]
    if growth.n_children[row] == NONE:
        growth.following[row] = growth.reach[row] * LIKELY
    elif taken < growth.n_children[row]:
        growth.following[row] = growth.reach[row] * growth.child_p[row, taken]
    else:
        growth.following[row] = 0.0


@compiled_in_place
def _append(growth: Growth, node: int, above: int) -> None:
    """The next child of row ``above`` becomes node ``node``."""
    taken = growth.n_taken[above]
    growth.n_taken[above] += 1
    p = growth.child_p[above, taken]
    growth.tokens[node] = growth.child_ids[above, taken]
    growth.parents[node] = above - 1
    growth.scores[node] = p
    growth.text_share[node] = growth.child_text[above, taken] / p
    growth.corpus_share[node] = growth.child_corpus[above, taken] / p
    row = node + 1
    growth.reach[row] = growth.reach[above] * p
    growth.depths[row] = growth.depths[above] + 1
    for i in range(1, TAIL):
        growth.tails[row, i - 1] = growth.tails[above, i]
    growth.tails[row, TAIL - 1] = growth.tokens[node]
    growth.n_children[row] = NONE
    growth.n_taken[row] = 0
    _note_following(growth, above)
    _note_following(growth, row)
