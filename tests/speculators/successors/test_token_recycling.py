"""Token Recycling as published, against a literal matrix, and the shape of its tree."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from engine.protocol import Needs, Outcome
from engine.tree import EMPTY_TREE, ROOT
from speculators.successors.token_recycling import RANK_P, TokenRecycling, TokenRecyclingConfig, rank_tree
from speculators.testing import HashTarget
from tests.speculators.drafts import follow
from tests.speculators.successors.successor_runs import PROMPT, view


class LiteralMatrix:
    """The paper's adjacency matrix (section 3), vocabulary x k; -1 where nothing was written."""

    def __init__(self, config, vocab_size):
        self.config = config
        self.rows = np.full((vocab_size, config.top_k), -1)

    def learn(self, context, ids):
        self.rows[context[-1]] = ids[: self.config.top_k]

    def draft(self, text, budget):
        """Breadth first by rank from the last token."""
        paths = []
        for parent, rank in rank_tree(min(budget, self.config.max_nodes), self.config.depth, self.config.top_k):
            above = () if parent == ROOT else paths[parent]
            token = -1 if above is None else self.rows[above[-1] if above else text[-1]][rank]
            paths.append(None if token < 0 else (*above, int(token)))
        return [path for path in paths if path is not None]


@pytest.mark.parametrize(
    ("config", "budget"), [((8, 80, 6, True), 80), ((3, 25, 4, False), 64), ((8, 80, 6, True), 13)]
)
def test_drafts_are_the_papers_step_by_step(config, budget):
    config = TokenRecyclingConfig("paper", *config)
    target = HashTarget(48, n_successors=2)
    assert follow(TokenRecycling(config), LiteralMatrix(config, 48), target, PROMPT, 60, budget) > 75


@pytest.mark.parametrize(("n_nodes", "depth", "top_k"), [(1, 3, 4), (10, 3, 4), (40, 3, 4), (50, 2, 10), (30, 4, 3)])
def test_no_other_nodes_of_that_number_are_likelier(n_nodes, depth, top_k):
    rank_p = [*RANK_P, RANK_P[-1] / 2, RANK_P[-1] / 4]
    every = [path for n in range(1, depth + 1) for path in product(range(top_k), repeat=n)]
    best = sorted((prod(rank_p[rank] for rank in path) for path in every), reverse=True)[:n_nodes]
    reach = []
    for parent, rank in rank_tree(n_nodes, depth, top_k):
        reach.append(rank_p[rank] * (1.0 if parent == ROOT else reach[parent]))
    assert reach == pytest.approx(best)


def test_rows_are_bounded_and_the_oldest_is_dropped():
    speculator, request = TokenRecycling(TokenRecyclingConfig("paper", top_k=2, max_tokens=3)), view([1, 2, 3, 1, 4])
    speculator.begin(request)
    ids = np.arange(10, dtype=np.int32).reshape(5, 2)
    speculator.observe(request, Outcome([], EMPTY_TREE, prompt_top_ids=ids))
    assert speculator.states[0] == {3: [4, 5], 1: [6, 7], 4: [8, 9]}
    assert TokenRecycling().needs == Needs(node_top_k=8, prompt_top_k=8)
    assert TokenRecycling(TokenRecyclingConfig("paper", 5, use_prompt=False)).needs == Needs(node_top_k=5)
