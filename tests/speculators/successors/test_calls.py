"""What Python calls of the mixed model: sources named by their shares, and one call that learns like three."""

import numpy as np
import pytest

from speculators.successors.calls import (
    LEAST_SHARE,
    PROPOSERS,
    SOURCES,
    addresses_of_growth,
    draft,
    learn,
)
from speculators.successors.config import SuccessorConfig
from speculators.successors.draws import Sampling
from speculators.successors.growth import grow, make_growth
from speculators.successors.learning import adapt_trust, learn_tree
from speculators.successors.models import Models
from speculators.successors.table import learn_text

GREEDY = Sampling(0.0, np.uint64(0))
TEXT = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 3, 1, 4, 1, 5], np.int32)
TREE = ([9, 7, 2], [-1, -1, 0])


def models():
    made = Models(SuccessorConfig(target_rows=256, text_rows=256), SOURCES[:2])
    both = made.new(64), made.new(64)
    for table in (table for model in both for table in (model.text, model.target)):
        table.ids.fill(-1)  # rows that nothing is known of are not made, or compared
        table.weights.fill(0.0)
        table.slots.fill(0)
    return both


def arrays(model):
    return [part for whole in (model.text, model.target, model.trusts) for part in whole] + [model.recent_ids]


def told(n):
    rng = np.random.default_rng(n)
    ids = rng.integers(0, 12, (n, 4)).astype(np.int32)
    return np.arange(-1, n - 1, dtype=np.int32), ids, rng.random((n, 4)).astype(np.float32)


@pytest.mark.parametrize("n_told", [0, 1, 4])
def test_a_step_is_learnt_in_one_call_as_in_three(n_told):
    together, apart = models()
    learn_text(together.text, TEXT[:8], 0)
    learn_text(apart.text, TEXT[:8], 0)
    tokens, parents = (np.array(one, np.int32) for one in TREE)
    nodes, ids, weights = told(n_told)
    learn(Models.addressed(together).addresses, TEXT, 8, 0.05, 8, tokens, parents, nodes, ids, weights, 0.9, 8)
    adapt_trust(apart, TEXT, 8, 0.05)
    if n_told:
        learn_tree(apart, TEXT, 8, tokens, parents, nodes, ids, weights, 0.9)
    learn_text(apart.text, TEXT, 8)
    for one, other in zip(arrays(together), arrays(apart), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("budget", [1, 5, 12])
def test_drafting_counts_what_was_missed_and_grows_the_same_tree(budget):
    together, apart = models()
    learn_text(apart.text, TEXT, 0)
    learn_text(together.text, TEXT[:9], 0)
    rooms = make_growth(budget), make_growth(budget)
    n = draft(Models.addressed(together).addresses, addresses_of_growth(rooms[0]), TEXT, 9, budget, 1e-5, *GREEDY)
    assert n == grow(apart, rooms[1], TEXT, budget, 1e-5, GREEDY) > 0
    for field in ("tokens", "parents", "scores", "text_share"):
        assert np.array_equal(getattr(rooms[0], field)[:n], getattr(rooms[1], field)[:n])
    assert [PROPOSERS[number] for number in rooms[0].proposers[:n]] == [
        ranked(text, corpus) for text, corpus in zip(rooms[0].text_share[:n], rooms[0].corpus_share[:n], strict=True)
    ]


def ranked(text, corpus):
    """The sources of a node the slow way: by their shares, the first of equals first."""
    shares = (float(text), float(np.float32(1.0) - text - corpus), float(corpus))
    places = [place for place in range(3) if shares[place] > LEAST_SHARE]
    return tuple(SOURCES[place] for place in sorted(places, key=lambda place: -shares[place]))


def test_every_ranking_has_a_number():
    named = {names for names in PROPOSERS if len(set(names)) == len(names)}
    assert len(named) == 1 + 3 + 6 + 6
    assert PROPOSERS[0] == ()
    assert PROPOSERS[1] == SOURCES[:1]
    assert PROPOSERS[4 * 2 + 1] == (SOURCES[1], SOURCES[0])
