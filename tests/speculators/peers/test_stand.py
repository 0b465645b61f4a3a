"""STAND's rows against means of distributions, and its children against draws without replacement."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Outcome
from engine.sampling.noise import gumbel
from engine.tree import EMPTY_TREE, ROOT
from speculators.peers.stand import Stand, StandConfig, averaged
from speculators.successors.token_recycling import rank_tree
from speculators.testing import HashTarget
from tests.speculators.drafts import follow, view

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@given(st.lists(st.lists(st.integers(1, 9), min_size=4, max_size=4), min_size=1, max_size=6))
def test_a_row_is_the_mean_of_all_distributions(weights):
    answers = [np.array(row) / sum(row) for row in weights]
    row = None
    for p in answers:
        row = averaged(row, dict(enumerate(p.tolist())), 4)
    assert row[0] == len(answers)
    assert [row[1][token] for token in range(4)] == pytest.approx(np.mean(answers, axis=0).tolist())
    k, best = averaged((3, {1: 0.6, 2: 0.4}), {3: 0.9, 2: 0.1}, 2)
    assert k == 4
    assert best == pytest.approx({1: 0.45 / 0.775, 2: 0.325 / 0.775}), "the best ids share all probability"


class LiteralStand:
    """Means of distributions by context, kept as lists of all rows; greedy drafts by rank."""

    def __init__(self, config):
        self.config = config
        self.answers = {}

    def learn(self, context, ids):
        p = np.array([0.5 ** (i + 1) for i in range(self.config.top_k)])
        for order in range(1, min(self.config.order, len(context)) + 1):
            known = self.answers.setdefault(tuple(context[-order:]), [])
            known.append(dict(zip(ids, (p / p.sum()).tolist(), strict=False)))

    def row(self, context):
        for order in range(self.config.order, 0, -1):
            known = self.answers.get(tuple(context[-order:])) if len(context) >= order else None
            if known:
                row = None
                for p in known:
                    row = averaged(row, p, self.config.top_k)
                return [token for token, _ in sorted(row[1].items(), key=lambda item: -item[1])]
        return []

    def draft(self, text, budget):
        paths = []
        for parent, rank in rank_tree(min(budget, self.config.nodes), self.config.depth, self.config.top_k):
            above = () if parent == ROOT else paths[parent]
            row = [] if above is None else self.row([*text, *above])
            paths.append(None if rank >= len(row) else (*above, row[rank]))
        return [path for path in paths if path is not None]


@pytest.mark.parametrize(("config", "budget"), [(StandConfig(), 64), (StandConfig(order=1, top_k=3, depth=4), 16)])
def test_every_greedy_draft_ranks_by_the_means(config, budget):
    assert follow(Stand(config), LiteralStand(config), HashTarget(48, n_successors=2), PROMPT, 25, budget) > 30


def with_one_row(config, p, **params):
    """Return a speculator that knows the probabilities after token 7, and its request."""
    stand, request = Stand(config), view([7], vocab_size=48, temperature=1.0, **params)
    stand.begin(request)
    ids = np.arange(len(p), dtype=np.int32)[None]
    stand.observe(
        request,
        Outcome([], EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=np.log(np.array([p], np.float32)), n_read=1),
    )
    return stand, request


def test_children_are_drawn_without_replacement():
    p = (0.6, 0.3, 0.1)
    stand, request = with_one_row(StandConfig(depth=1), p, seed=5)
    n = 4000
    drawn = Counter(tuple(stand.propose(request, 3)[0].tokens) for _ in range(n))
    for order in permutations(range(3)):
        expected = p[order[0]] * p[order[1]] / (1 - p[order[0]])
        assert drawn[order] / n == pytest.approx(expected, abs=4 * (expected * (1 - expected) / n) ** 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_with_the_targets_noise_the_first_child_is_the_targets_draw(seed):
    p = np.array([0.4, 0.3, 0.2, 0.1], np.float32)
    stand, request = with_one_row(StandConfig(depth=1, noise="target"), p, seed=seed)
    noise = gumbel([(seed, 0, 1)], 48)[0][:4].numpy()
    order = np.argsort(-(np.log(p) + noise)).tolist()
    assert stand.propose(request, 4)[0].tokens == order
    assert stand.propose(request, 4)[0].tokens == order  # a function of seed and position
    rejecting, request = with_one_row(StandConfig(depth=1, noise="target"), p, seed=seed, verification="rejection")
    assert rejecting.states[0].key is None
