"""Token Recycling as published, against a literal matrix, and the shape of its tree."""

from collections import Counter
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError
from engine.protocol import Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.top_ids import TopIds
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from speculators.successors.token_recycling import RANK_P, TokenRecycling, TokenRecyclingConfig, rank_tree
from speculators.testing import HashTarget

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def view(prompt, request_id=0, vocab_size=48, scope=""):
    return RequestView.of(request_id, Request(prompt, SamplingParams(), scope=scope), vocab_size)


def depths_of(shape):
    depths = []
    for parent, _ in shape:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return depths


class LiteralMatrix:
    """The paper's adjacency matrix (section 3), vocabulary x k, zeros where nothing was written, 0 being no token."""

    def __init__(self, vocab_size, k):
        self.rows = np.full((vocab_size, k), -1)

    def update(self, token, ids):
        self.rows[token] = ids[: self.rows.shape[1]]

    def tree(self, last, shape):
        """Breadth first by rank from the last token: every node's path of tokens."""
        paths = []
        for parent, rank in shape:
            above = () if parent == ROOT else paths[parent]
            if above is None:
                paths.append(None)
                continue
            token = self.rows[above[-1] if above else last][rank]
            paths.append(None if token < 0 else (*above, int(token)))
        return [path for path in paths if path is not None]


def paths_of(tree):
    return [tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))]


@pytest.mark.parametrize("use_prompt", [True, False])
@pytest.mark.parametrize(("top_k", "max_nodes", "depth", "budget"), [(8, 80, 6, 80), (3, 25, 4, 64), (8, 80, 6, 13)])
def test_drafts_are_the_papers_step_by_step(use_prompt, top_k, max_nodes, depth, budget):
    target = HashTarget(48, n_successors=2)
    speculator = TokenRecycling(TokenRecyclingConfig("paper", top_k, max_nodes, depth, use_prompt))
    matrix = LiteralMatrix(48, top_k)
    shape = rank_tree(min(budget, max_nodes), depth, top_k)
    request = view(PROMPT)
    speculator.begin(request)
    outcome = target.read_prompt(PROMPT)
    if use_prompt:
        for token, ids in zip(PROMPT, outcome.prompt_top_ids.tolist(), strict=True):
            matrix.update(token, ids)
    else:
        outcome = Outcome(outcome.tokens, EMPTY_TREE)
    n_rejected = 0
    for _ in range(60):
        request.context.extend(outcome.tokens)
        speculator.observe(request, outcome)
        context = request.context.view.tolist()
        branches = speculator.propose(request, budget)
        wanted = matrix.tree(context[-1], shape)
        assert [path for branch in branches for path in paths_of(TokenTree(branch.tokens, branch.parents))] == wanted
        tree = compose(branches, budget)
        assert paths_of(tree) == wanted
        outcome = target.score(context, tree)
        n_rejected += len(tree) - len(outcome.accepted)
        matrix.update(context[-1], outcome.top_ids[ROOT])
        for node, token in enumerate(tree.tokens):  # rejected ones too, later nodes overwrite
            matrix.update(token, outcome.top_ids[node])
    output = request.context.view[len(PROMPT) :].tolist()
    assert output == target.generate(PROMPT, len(output))
    assert len(output) > 75
    assert n_rejected > 500


def test_prompts_in_chunks_fill_the_same_matrix():
    target = HashTarget(48)
    prompt = [*PROMPT, *target.generate(PROMPT, 20)]
    whole = target.read_prompt(prompt)
    found = []
    for cuts in ([len(prompt)], [1, 8, 9, 20, len(prompt)]):
        speculator, request, start = TokenRecycling(), view(prompt), 0
        speculator.begin(request)
        for end in cuts:
            last = end == len(prompt)
            request.context.extend(whole.tokens if last else [])
            speculator.observe(
                request,
                Outcome(
                    whole.tokens if last else [],
                    EMPTY_TREE,
                    prompt_top_ids=whole.prompt_top_ids[start:end],
                    prompt_start=start,
                ),
            )
            start = end
        found.append(speculator._matrices[0])
    assert found[0] == found[1]
    assert list(found[0]) == list(found[1])  # the same row would give way first
    assert set(found[0]) == set(prompt)


def test_only_some_nodes_may_be_read_back_and_more_ids_than_asked_for():
    """In a combination others set the width, and probes are scored as well."""
    speculator = TokenRecycling(TokenRecyclingConfig("paper", top_k=2))
    request = view([1, 2])
    speculator.begin(request)
    request.context.extend([7])
    top = TopIds(np.array([1], np.int32), np.array([[11, 12, 13, 14]], np.int32))
    speculator.observe(request, Outcome([7], TokenTree([5, 6], [ROOT, 0]), (), top))
    assert speculator._matrices[0] == {6: [11, 12]}
    speculator.observe(request, Outcome([7], TokenTree([5], [ROOT]), (), {ROOT: [3, 4, 5]}))
    assert speculator._matrices[0] == {6: [11, 12], 2: [3, 4]}


@given(st.integers(0, 120), st.integers(1, 8), st.integers(1, 12))
def test_the_shape_is_a_tree_of_ranks_without_gaps(n_nodes, depth, top_k):
    shape = rank_tree(n_nodes, depth, top_k)
    assert len(shape) == min(n_nodes, sum(top_k**level for level in range(1, depth + 1)))
    assert all(ROOT <= parent < node and 0 <= rank < top_k for node, (parent, rank) in enumerate(shape))
    assert max(depths_of(shape), default=0) <= depth
    ranks = {}
    for parent, rank in shape:
        assert rank == ranks.get(parent, 0)  # the best first, none left out
        ranks[parent] = rank + 1
    assert shape == rank_tree(120, depth, top_k)[:n_nodes]


@pytest.mark.parametrize(("n_nodes", "depth", "top_k"), [(1, 3, 4), (10, 3, 4), (40, 3, 4), (50, 2, 10), (30, 4, 3)])
def test_no_other_nodes_of_that_number_are_likelier(n_nodes, depth, top_k):
    """Against all paths of ranks, each as likely as the product of its ranks."""
    rank_p = [*RANK_P, RANK_P[-1] / 2, RANK_P[-1] / 4]
    every = [path for n in range(1, depth + 1) for path in product(range(top_k), repeat=n)]
    best = sorted((prod(rank_p[rank] for rank in path) for path in every), reverse=True)[:n_nodes]
    reach = []
    for parent, rank in rank_tree(n_nodes, depth, top_k):
        reach.append(rank_p[rank] * (1.0 if parent == ROOT else reach[parent]))
    assert reach == pytest.approx(best)


def test_the_default_shape_is_deep_where_ranks_are_good():
    shape = rank_tree(80, 6, 8)
    depths = depths_of(shape)
    assert len(shape) == 80
    assert max(depths) == 6
    assert Counter(depths)[1] == 8
    best = ROOT  # the path of best ranks goes to the bottom
    for _ in range(6):
        best = shape.index((best, 0))
    assert depths[best] == 6


# State.


def decode(speculator, target, request, n_steps=12):
    drafts = []
    speculator.begin(request)
    outcome = target.read_prompt(request.context.view.tolist())
    for _ in range(n_steps):
        request.context.extend(outcome.tokens)
        speculator.observe(request, outcome)
        drafts.append(speculator.propose(request, 40))
        outcome = target.score(request.context.view.tolist(), compose(drafts[-1], 40))
    speculator.end(request)
    return drafts


def test_nothing_outlives_its_request_unless_it_is_shared():
    target = HashTarget(48, n_successors=2)
    speculator = TokenRecycling()
    first = decode(speculator, target, view(PROMPT))
    assert (speculator._matrices, speculator._shared) == ({}, {})
    assert decode(speculator, target, view(PROMPT)) == first
    shared = TokenRecycling(TokenRecyclingConfig("paper", shared=True, use_prompt=False))
    request = view([3], scope="a")
    decode(shared, target, request)
    assert shared._matrices == {}
    for scope, knows in (("a", True), ("b", False)):
        later = view([3], 1, scope=scope)
        shared.begin(later)
        assert (shared.propose(later, 8) != []) == knows


@given(st.integers(0, 999))
def test_what_one_scope_learns_never_reaches_another(seed):
    speculator = TokenRecycling(TokenRecyclingConfig("paper", top_k=4, shared=True))
    rng = np.random.default_rng(seed)
    homes = {"a": range(20), "b": range(10, 30)}  # contexts in common, successors not
    for request_id, name in enumerate(rng.choice(["a", "b"], 8).tolist()):
        said = {"a": range(100, 120), "b": range(200, 220)}[name]
        request = view(rng.choice(homes[name], 6).tolist(), request_id, 300, name)
        speculator.begin(request)
        ids = np.array([rng.choice(said, 4, replace=False) for _ in range(6)], np.int32)
        speculator.observe(request, Outcome([], EMPTY_TREE, prompt_top_ids=ids))
        for branch in speculator.propose(request, 40):
            assert set(branch.tokens) <= set(said)
        speculator.end(request)


def test_rows_are_bounded_and_the_oldest_gives_way():
    speculator = TokenRecycling(TokenRecyclingConfig("paper", top_k=2, max_tokens=3))
    request = view([1, 2, 3, 1, 4])
    speculator.begin(request)
    ids = np.arange(10, dtype=np.int32).reshape(5, 2)
    speculator.observe(request, Outcome([], EMPTY_TREE, prompt_top_ids=ids))
    assert speculator._matrices[0] == {3: [4, 5], 1: [6, 7], 4: [8, 9]}


def test_needs_are_ids_behind_nodes_and_the_prompt():
    assert TokenRecycling().needs == Needs(node_top_k=8, prompt_top_k=8)
    assert TokenRecycling(TokenRecyclingConfig("paper", 5, use_prompt=False)).needs == Needs(node_top_k=5)


@pytest.mark.parametrize("bad", [{"mode": "best"}, {"top_k": 0}, {"max_nodes": 0}, {"depth": 0}, {"max_tokens": 0}])
def test_wrong_settings_are_named(bad):
    with pytest.raises(ConfigError, match=f"token-recycling: {next(iter(bad))} must "):
        TokenRecyclingConfig(**bad)
