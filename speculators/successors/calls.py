"""What Python calls in a step, once to draft and once to learn: the model comes as its addresses. Compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.compiled.functions import compiled, compiled_in_place
from engine.tree import FloatArray, IntArray
from retrieval_store.index.addresses import Addresses, addresses_of, opener
from speculators.successors.config import CORPUS, TARGET, TEXT
from speculators.successors.draws import Sampling
from speculators.successors.growth import Growth, grow, make_growth
from speculators.successors.learning import adapt_trust, learn_prompt, learn_tree
from speculators.successors.models import EXAMPLE
from speculators.successors.table import learn_text

_GROWTH = make_growth(1)  # an example
_model_at, _growth_at = opener(EXAMPLE), opener(_GROWTH)
SOURCES = (TEXT, TARGET, CORPUS)
LEAST_SHARE = 1e-6  # of a node's probability that makes a source one of its proposers


def addresses_of_growth(growth: Growth) -> Addresses:
    """Of a tree's arrays."""
    return addresses_of(growth, _GROWTH)


@compiled
def draft(
    model: Addresses,
    growth: Addresses,
    context: IntArray,
    n_learnt: int,
    budget: int,
    least: float,
    temperature: float,
    noise_key: Any,
) -> int:
    """Count ``context[n_learnt:]``, then ``grow``, and note who proposed the nodes; returns their number."""
    opened, room = _model_at(model), _growth_at(growth)
    learn_text(opened.text, context, n_learnt)
    n = grow(opened, room, context, budget, least, Sampling(temperature, noise_key))
    for node in range(n):
        room.proposers[node] = _ranking(room, node)
    return n


@compiled
def learn(
    model: Addresses,
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
    """``adapt_trust`` from ``n_seen`` on, ``learn_tree`` if nodes are told, ``learn_text`` from ``n_learnt``."""
    opened = _model_at(model)
    if rate > 0.0:
        adapt_trust(opened, context, n_seen, rate)
    if len(nodes):
        learn_tree(opened, context, n_before, tokens, parents, nodes, ids, weights, decay)
    learn_text(opened.text, context, n_learnt)


@compiled
def read_prompt(
    model: Addresses, context: IntArray, start: int, ids: IntArray, weights: FloatArray, decay: float
) -> None:
    """``learn_prompt``."""
    learn_prompt(_model_at(model), context, start, ids, weights, decay)


@compiled
def count(model: Addresses, context: IntArray, n_learnt: int) -> None:
    """``learn_text``."""
    learn_text(_model_at(model).text, context, n_learnt)


@compiled_in_place
def _ranking(growth: Growth, node: int) -> int:
    """The sources of a node, the one that gave it most first: a digit to the base 4 each, its place in SOURCES + 1."""
    text, corpus = growth.text_share[node], growth.corpus_share[node]
    shares = (text, np.float32(1.0) - text - corpus, corpus)
    number = 0
    named = 0  # bits
    for _ in range(3):
        best = -1
        for place in range(3):
            if shares[place] > LEAST_SHARE and not named & 1 << place and (best < 0 or shares[place] > shares[best]):
                best = place
        if best < 0:
            break
        named |= 1 << best
        number = 4 * number + best + 1
    return number


def _sources(number: int) -> tuple[str, ...]:
    """What ``_ranking`` stands for."""
    above, place = divmod(number, 4)
    return () if number == 0 else (*_sources(above), SOURCES[place - 1]) if place else ()


PROPOSERS = tuple(_sources(number) for number in range(4**3))  # by number
