"""STAND: rows are means, children are draws without replacement."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError
from engine.protocol import Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.noise import gumbel
from engine.sampling.params import SamplingParams
from engine.top_ids import TopIds
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from speculators.peers.stand import Stand, StandConfig, averaged
from speculators.successors.token_recycling import rank_tree
from speculators.testing import HashTarget

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def view(prompt, request_id=0, scope="", **params):
    return RequestView.of(request_id, Request(prompt, SamplingParams(**params), scope=scope), 48)


@given(st.lists(st.lists(st.integers(1, 9), min_size=4, max_size=4), min_size=1, max_size=6))
def test_a_row_is_the_mean_of_what_was_said(weights):
    said = [np.array(row) / sum(row) for row in weights]
    row = None
    for p in said:
        row = averaged(row, dict(enumerate(p.tolist())), 4)
    assert row[0] == len(said)
    assert [row[1][token] for token in range(4)] == pytest.approx(np.mean(said, axis=0).tolist())


def test_only_the_best_ids_stay_and_share_all_probability():
    k, row = averaged((3, {1: 0.6, 2: 0.4}), {3: 0.9, 2: 0.1}, 2)
    assert k == 4
    assert row == pytest.approx({1: 0.45 / 0.775, 2: 0.325 / 0.775})


class Literal:
    """Means of distributions by context, kept as lists of everything said; greedy drafts by rank."""

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

    def draft(self, text, n_nodes):
        paths = []
        for parent, rank in rank_tree(n_nodes, self.config.depth, self.config.top_k):
            above = () if parent == ROOT else paths[parent]
            row = [] if above is None else self.row([*text, *above])
            paths.append(None if rank >= len(row) else (*above, row[rank]))
        return [path for path in paths if path is not None]


def paths_of(tree):
    return [tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))]


@pytest.mark.parametrize(("config", "budget"), [(StandConfig(), 64), (StandConfig(order=1, top_k=3, depth=4), 16)])
def test_greedy_drafts_follow_the_means_step_by_step(config, budget):
    target = HashTarget(48, n_successors=2)
    stand, literal, request = Stand(config), Literal(config), view(PROMPT)
    stand.begin(request)
    outcome = target.read_prompt(PROMPT)
    for end, ids in enumerate(outcome.prompt_top_ids.tolist(), 1):
        literal.learn(PROMPT[:end], ids)
    for _ in range(25):
        request.context.extend(outcome.tokens)
        stand.observe(request, outcome)
        text = request.context.view.tolist()
        branches = stand.propose(request, budget)
        found = [path for branch in branches for path in paths_of(TokenTree(branch.tokens, branch.parents))]
        assert found == literal.draft(text, min(budget, config.nodes))
        tree = compose(branches, budget)
        outcome = target.score(text, tree)
        literal.learn(text, outcome.top_ids[ROOT])
        for node, path in enumerate(paths_of(tree)):
            literal.learn([*text, *path], outcome.top_ids[node])
    output = request.context.view[len(PROMPT) :].tolist()
    assert output == target.generate(PROMPT, len(output))
    assert len(output) > 30


def taught(config, p, **params):
    """A speculator that knows one row, behind token 7."""
    stand, request = Stand(config), view([7], temperature=1.0, **params)
    stand.begin(request)
    ids = np.arange(len(p), dtype=np.int32)[None]
    stand.observe(
        request,
        Outcome([], EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=np.log(np.array([p], np.float32)), n_read=1),
    )
    return stand, request


def test_children_are_drawn_without_replacement():
    """Of all orders in which three of three ids can be drawn, each comes as often as it must."""
    p = (0.6, 0.3, 0.1)
    stand, request = taught(StandConfig(depth=1), p, seed=5)
    n = 4000
    drawn = Counter(tuple(stand.propose(request, 3)[0].tokens) for _ in range(n))
    for order in permutations(range(3)):
        wanted = p[order[0]] * p[order[1]] / (1 - p[order[0]])
        assert drawn[order] / n == pytest.approx(wanted, abs=4 * (wanted * (1 - wanted) / n) ** 0.5)


@pytest.mark.parametrize("seed", range(20))
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


def test_a_scope_shares_its_rows_and_no_other_and_rows_are_bounded():
    target, stand = HashTarget(48), Stand(StandConfig(shared=True, max_rows=6))
    request = view(PROMPT, 0, "a")
    stand.begin(request)
    stand.observe(request, target.read_prompt(PROMPT))
    assert len(stand._states[0].rows) == 6
    stand.end(request)
    assert stand._states == {}
    for scope, knows in (("a", True), ("b", False)):
        later = view([6], 1, scope)
        stand.begin(later)
        assert (stand.propose(later, 8) != []) == knows
        stand.end(later)


def test_other_parts_may_want_more_or_no_probabilities():
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


@pytest.mark.parametrize("bad", [{"nodes": 0}, {"depth": 0}, {"order": 0}, {"top_k": 0}, {"noise": "none"}])
def test_wrong_settings_are_named(bad):
    with pytest.raises(ConfigError, match=f"stand: {next(iter(bad))} must "):
        StandConfig(**bad)
