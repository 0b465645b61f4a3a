"""STAND: rows are means, children are draws without replacement."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Needs, Outcome
from engine.sampling.noise import gumbel
from engine.top_ids import TopIds
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from speculators.peers.scored_contexts import RecentRows, scored_contexts
from speculators.peers.stand import Stand, StandConfig, averaged
from speculators.successors.token_recycling import rank_tree
from speculators.testing import HashTarget
from tests.support.drafts import follow, observe_prompt, view

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@given(st.lists(st.lists(st.integers(1, 9), min_size=4, max_size=4), min_size=1, max_size=6))
def test_a_row_is_the_mean_of_all_distributions(weights):
    said = [np.array(row) / sum(row) for row in weights]
    row = None
    for p in said:
        row = averaged(row, dict(enumerate(p.tolist())), 4)
    assert row[0] == len(said)
    assert [row[1][token] for token in range(4)] == pytest.approx(np.mean(said, axis=0).tolist())
    k, best = averaged((3, {1: 0.6, 2: 0.4}), {3: 0.9, 2: 0.1}, 2)
    assert k == 4
    assert best == pytest.approx({1: 0.45 / 0.775, 2: 0.325 / 0.775}), "the best ids share all probability"


class Literal:
    """Means of distributions by context, kept as lists of all rows; greedy drafts by rank."""

    def __init__(self, config):
        self.config = config
        self.said = {}

    def learn(self, context, ids):
        p = np.array([0.5 ** (i + 1) for i in range(self.config.top_k)])
        for order in range(1, min(self.config.order, len(context)) + 1):
            known = self.said.setdefault(tuple(context[-order:]), [])
            known.append(dict(zip(ids, (p / p.sum()).tolist(), strict=False)))

    def row(self, context):
        for order in range(self.config.order, 0, -1):
            known = self.said.get(tuple(context[-order:])) if len(context) >= order else None
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
def test_greedy_drafts_follow_the_means_step_by_step(config, budget):
    assert follow(Stand(config), Literal(config), HashTarget(48, n_successors=2), PROMPT, 25, budget) > 30


def taught(config, p, **params):
    """A speculator that knows one row, after token 7."""
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
    stand, request = taught(StandConfig(depth=1), p, seed=5)
    n = 4000
    drawn = Counter(tuple(stand.propose(request, 3)[0].tokens) for _ in range(n))
    for order in permutations(range(3)):
        wanted = p[order[0]] * p[order[1]] / (1 - p[order[0]])
        assert drawn[order] / n == pytest.approx(wanted, abs=4 * (wanted * (1 - wanted) / n) ** 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_with_the_targets_noise_the_first_child_is_its_draw(seed):
    """``argmax(log p + Gumbel)`` at the position to be drawn, where the row is the target's distribution."""
    p = np.array([0.4, 0.3, 0.2, 0.1], np.float32)
    stand, request = taught(StandConfig(depth=1, noise="target"), p, seed=seed)
    noise = gumbel([(seed, 0, 1)], 48)[0][:4].numpy()
    order = np.argsort(-(np.log(p) + noise)).tolist()
    assert stand.propose(request, 4)[0].tokens == order
    assert stand.propose(request, 4)[0].tokens == order  # a function of seed and position
    rejecting, request = taught(StandConfig(depth=1, noise="target"), p, seed=seed, verification="rejection")
    assert rejecting._states[0].key is None


def test_rows_are_bounded():
    stand, request = Stand(StandConfig(max_rows=6)), view(PROMPT)
    stand.begin(request)
    observe_prompt(stand, request, HashTarget(48))
    assert len(stand._states[0].rows) == 6


def test_other_parts_may_need_more_ids_or_no_probabilities():
    stand, request = Stand(StandConfig(top_k=2)), view([1, 2])
    stand.begin(request)
    request.context.extend([7])
    top = TopIds(np.array([0], np.int32), np.array([[11, 12, 13]], np.int32), np.zeros((1, 3), np.float32))
    stand.observe(request, Outcome([7], TokenTree([5], [ROOT]), (), top))
    assert {context: set(row[1]) for context, row in stand._states[0].rows.items()} == {
        context: {11, 12} for context in ((1, 2, 5), (2, 5), (5,))
    }
    stand.observe(request, Outcome([7], TokenTree([5], [ROOT]), (), {ROOT: [3, 4, 5]}))
    assert len(stand._states[0].rows) == 3
    assert stand.needs == Needs(node_top_k=2, prompt_top_k=2, top_logprobs=True)


def test_prompt_positions_have_the_tokens_up_to_them_as_context():
    target = HashTarget(48)
    whole = target.read_prompt(PROMPT)
    request = view(PROMPT)
    rows = list(scored_contexts(request, Outcome([], EMPTY_TREE, prompt_top_ids=whole.prompt_top_ids), 3, 4))
    assert rows == []  # no probabilities, no rows
    for start in range(len(PROMPT)):
        outcome = target.read_prompt(PROMPT, start)
        rows = list(scored_contexts(request, outcome, 3, 4))
        assert [row[0] for row in rows] == [
            tuple(PROMPT[max(end - 3, 0) : end]) for end in range(start + 1, len(PROMPT) + 1)
        ]
        for context, (_, ids, p) in enumerate(rows, start):
            assert ids == target.top_ids(PROMPT[: context + 1])[:4]
            assert p == pytest.approx([8 / 15, 4 / 15, 2 / 15, 1 / 15])


def test_nodes_have_their_path_after_the_context():
    request = view(PROMPT)
    request.context.extend([8, 7])
    tree = TokenTree([8, 20, 21], [ROOT, 0, ROOT])
    ids = np.array([[8, 1], [7, 2], [4, 3]], np.int32)
    top = TopIds(np.array([ROOT, 0, 1], np.int32), ids, np.log(np.array([[0.6, 0.2]] * 3, np.float32)))
    rows = list(scored_contexts(request, Outcome([8, 7], tree, (0,), top), 4, 2))
    assert [row[:2] for row in rows] == [
        ((5, 9, 2, 6), [8, 1]),
        ((9, 2, 6, 8), [7, 2]),
        ((2, 6, 8, 20), [4, 3]),
    ]
    assert all(row[2] == pytest.approx([0.75, 0.25]) for row in rows)


def test_the_row_written_longest_ago_is_dropped():
    rows = RecentRows(2)
    for context, row in (((1,), "a"), ((2,), "b"), ((1,), "c"), ((3,), "d")):
        rows.put(context, row)
    assert rows == {(1,): "c", (3,): "d"}
