"""Compiled drafting: a tree of the most probable successors (``engine.best_first.arrays``)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from engine.best_first.arrays import GrowingTree, begin_tree, make_growing_tree, next_row
from engine.compiled import compiled, compiled_in_place
from engine.tree import FloatArray, IntArray
from retrieval_store.index.addresses import Addresses, addresses_of, opener
from speculators.successors.candidates import N_SOURCES, rank_candidates
from speculators.successors.config import SOURCES
from speculators.successors.draws import Sampling, weigh_draws
from speculators.successors.mix import SuccessorModel, mix_successors
from speculators.successors.models import model_at
from speculators.successors.table import NONE, TAIL, extend_tail, fill_tail, learn_text

MAX_CHILDREN = 32
WORTHLESS = 2e-5  # path probability below which a contribution to a candidate is left out
LEAST_SHARE = 1e-6  # of a node's probability that makes a source one of its proposers


class SuccessorTree(NamedTuple):
    """A tree of at most ``n`` nodes, with what the mixed model adds to it."""

    grown: GrowingTree
    tails: IntArray  # [n + 1, TAIL]: last tokens of the path, for rows whose children are known
    child_parts: FloatArray  # [n + 1, MAX_CHILDREN, N_SOURCES]: of the probability, by source
    proposers: IntArray  # [n]: see ``PROPOSERS``


def make_successor_tree(n: int) -> SuccessorTree:
    """Return room for ``n`` nodes."""
    return SuccessorTree(
        make_growing_tree(n, MAX_CHILDREN),
        np.empty((n + 1, TAIL), np.int32),
        np.empty((n + 1, MAX_CHILDREN, N_SOURCES), np.float32),
        np.empty(n, np.int32),
    )


_EXAMPLE = make_successor_tree(1)
tree_at = opener(_EXAMPLE)


def addresses_of_tree(tree: SuccessorTree) -> Addresses:
    return addresses_of(tree, _EXAMPLE)


@compiled
def draft(
    model_address: Addresses,
    tree_address: Addresses,
    context: IntArray,
    n_learnt: int,
    budget: int,
    least: float,
    temperature: float,
    noise_key: Any,
) -> int:
    """Count ``context[n_learnt:]``, then grow a tree of path probabilities above ``least``; return its size."""
    model, tree, sampling = model_at(model_address), tree_at(tree_address), Sampling(temperature, noise_key)
    learn_text(model.text, context, n_learnt)
    row = begin_draft(tree, context, budget, least)
    while row != NONE:
        find_children(model, tree, row, budget, sampling, len(context))
        row = next_row_with_tail(tree, budget, least)
    return finish_draft(tree)


@compiled_in_place
def begin_draft(tree: SuccessorTree, context: IntArray, budget: int, least: float) -> int:
    """Leave the root alone in the tree, the end of ``context``; return the first row that needs children, or NONE."""
    fill_tail(tree.tails[0], context, len(context))
    begin_tree(tree.grown)
    return next_row(tree.grown, budget, least)


@compiled_in_place
def next_row_with_tail(tree: SuccessorTree, budget: int, least: float) -> int:
    """Append nodes, and return the row whose children are needed next, with its tail; NONE if the tree is finished."""
    grown = tree.grown
    row = next_row(grown, budget, least)
    if row > 0:
        extend_tail(tree.tails[row], tree.tails[grown.parents[row - 1] + 1], grown.tokens[row - 1])
    return row


@compiled_in_place
def finish_draft(tree: SuccessorTree) -> int:
    """Set the proposers of all nodes; return the number of nodes."""
    grown = tree.grown
    n = grown.progress[0]
    for node in range(n):
        tree.proposers[node] = _rank_sources(tree.child_parts[grown.parents[node] + 1, grown.ranks[node]])
    return int(n)


@compiled_in_place
def find_children(
    model: SuccessorModel, tree: SuccessorTree, row: int, budget: int, sampling: Sampling, n_context: int
) -> None:
    """Set the children of a row to its most probable successors, best first."""
    grown, candidates = tree.grown, model.candidates
    position = n_context + grown.depths[row]
    most = min(MAX_CHILDREN, budget - grown.progress[0])  # further children could not become nodes
    least = WORTHLESS / grown.reach[row] if sampling.temperature == 0.0 else 0.0  # noise may lift any candidate
    mix_successors(model, tree.tails[row], least)
    weigh_draws(candidates, sampling, position)
    n = rank_candidates(candidates, most)
    for rank in range(n):
        place = candidates.ranked[rank]
        grown.child_ids[row, rank], grown.child_p[row, rank] = candidates.ids[place], candidates.p[place]
        for source in range(N_SOURCES):
            tree.child_parts[row, rank, source] = candidates.parts[place, source]
    grown.n_children[row] = n


@compiled_in_place
def _rank_sources(parts: FloatArray) -> int:
    """Return the sources with a part, largest first: a digit to the base 4 each, its place + 1. Empties ``parts``."""
    least = LEAST_SHARE * (parts[0] + parts[1] + parts[2])
    number = 0
    for _ in range(N_SOURCES):
        best = 0
        for source in range(1, N_SOURCES):
            if parts[source] > parts[best]:
                best = source
        if parts[best] <= least:
            break
        number = 4 * number + best + 1
        parts[best] = 0.0
    return number


def _named(number: int) -> tuple[str, ...]:
    """Return the names for a number of ``_rank_sources``."""
    before, place = divmod(number, 4)
    return (*_named(before), SOURCES[place - 1]) if place else ()


PROPOSERS = tuple(_named(number) for number in range(4**N_SOURCES))  # names of the sources by number
