"""Composition: which nodes survive the merge of branches, and who owns them. Exactness of q: verify/test_exact.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import _Builder, compose
from engine.protocol import Branch
from engine.tree import EMPTY_TREE, ROOT, TokenTree

VOCAB = 4


@st.composite
def branches(draw: st.DrawFn) -> Branch:
    kind = draw(st.sampled_from(["guess", "guess", "tree", "probe", "sampled"]))
    n = draw(st.integers(0, 5))
    tokens = draw(st.lists(st.integers(0, VOCAB - 1), min_size=n, max_size=n))
    source = draw(st.sampled_from("abc"))
    parents = [draw(st.integers(ROOT, i - 1)) for i in range(n)] if kind == "tree" else None
    q = np.full((n, VOCAB), 1 / VOCAB, dtype=np.float32) if kind == "sampled" else None
    return Branch(tokens, source, parents, kind == "probe", q)


BRANCHES = st.lists(branches(), max_size=8)
BUDGETS = st.integers(0, 20)


def paths(branch: Branch) -> list[tuple[int, ...]]:
    """Token path of every node of a branch."""
    found: list[tuple[int, ...]] = []
    parents = branch.parents if branch.parents is not None else range(-1, len(branch.tokens) - 1)
    for token, parent in zip(branch.tokens, parents, strict=True):
        found.append((*(found[parent] if parent != ROOT else ()), token))
    return found


def path_of(tree: TokenTree, node: int) -> tuple[int, ...]:
    return tuple(tree.tokens[i] for i in tree.path(node))


def names_of(tree: TokenTree, node: int) -> set[str]:
    return {name for i, name in enumerate(tree.source_names) if tree.proposers[node] >> i & 1}


@given(BRANCHES, BUDGETS)
def test_nodes_are_proposed_paths_within_the_budget(proposals: list[Branch], budget: int) -> None:
    tree = compose(proposals, budget)
    assert len(tree) <= budget
    for node in range(len(tree)):
        path, is_probe = path_of(tree, node), tree.probe[node]
        assert any(path in paths(b) for b in proposals if b.probe == is_probe), "only a guess may be accepted"
        owner = tree.source_names[tree.sources[node]]
        assert names_of(tree, node) == set() if is_probe else owner in names_of(tree, node)
    everything = compose(proposals, 1000)
    found = {path_of(everything, node) for node in range(len(everything))}
    assert found == {path for b in proposals for path in paths(b)}


@given(BRANCHES.map(lambda bs: [b for b in bs if b.parents is None and b.q is None]), BUDGETS)
def test_chains_are_cut_only_for_lack_of_room_and_no_edge_occurs_twice(proposals: list[Branch], budget: int) -> None:
    tree = compose(proposals, budget)
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree)
    for branch in proposals:
        if not branch.probe and tree.find(branch.tokens) is None:
            assert len(tree) == budget


@given(BRANCHES, BUDGETS)
def test_probes_are_whole_or_absent(proposals: list[Branch], budget: int) -> None:
    tree = compose(proposals, budget)
    whole = {path for b in proposals if b.probe for path in paths(b)[-1:] if tree.find(path) is not None}
    for node in range(len(tree)):
        if tree.probe[node]:  # every pure probe node leads to the end of some probe
            path = path_of(tree, node)
            assert any(end[: len(path)] == path for end in whole)
    assert {path_of(tree, node) for node in tree.probe_ends} == whole - {()}
    assert all(tree.find(path_of(tree, node)) == node for node in tree.probe_ends)


def followed(tree: TokenTree, path: Sequence[int]) -> int | None:
    """The node at the end of ``path``, taking the first child of every token."""
    node = ROOT
    for token in path:
        below = [child for child in tree.children[node + 1] if tree.tokens[child] == token]
        if not below:
            return None
        node = below[0]
    return node


@given(BRANCHES, BUDGETS)
def test_q_survives_only_among_draws_of_one_source(proposals: list[Branch], budget: int) -> None:
    tree = compose(proposals, budget)
    if tree.q is None:
        return
    assert tree.q.shape == (len(tree), VOCAB)
    assert tree.q.dtype == np.float32
    for siblings in tree.children:
        drawn = [node for node in siblings if tree.q[node].any()]
        if not drawn:
            continue
        assert drawn == siblings
        assert len({tree.sources[node] for node in siblings}) == 1
        path = path_of(tree, siblings[0])[:-1]
        others = [b for b in proposals if not b.probe and b.q is None]
        tried = [b for b in others for p in paths(b) if p[:-1] == path]
        first = followed(tree, path) == tree.parents[siblings[0]]
        assert not (first and tried), "a rule proposed a sibling"


@given(BRANCHES)
def test_draws_of_one_source_keep_their_duplicates(proposals: list[Branch]) -> None:
    sampled = [Branch(b.tokens, "drafter", q=b.q) for b in proposals if b.q is not None]
    tree = compose(sampled, 1000)
    assert len(tree.children[0]) == sum(bool(b.tokens) for b in sampled)
    assert tree.q is None or tree.q.any(axis=1).all()


def test_small_compositions() -> None:
    assert compose([], 10) is EMPTY_TREE
    assert compose([Branch([1], "a")], 0) is EMPTY_TREE
    guess_over_probe = compose([Branch([1, 2], "pool", probe=True), Branch([1, 3], "pld")], 10)
    assert (guess_over_probe.tokens, guess_over_probe.probe) == ([1, 2, 3], [False, True, False])
    assert guess_over_probe.probe_ends == {1}
    q = np.full((1, VOCAB), 1 / VOCAB, dtype=np.float32)
    draws_on_guess = compose([Branch([1], "pld"), Branch([1], "drafter", q=q), Branch([1], "drafter", q=q)], 5)
    assert (draws_on_guess.tokens, names_of(draws_on_guess, 0)) == ([1], {"pld", "drafter"})


NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def merged(draw: st.DrawFn) -> Branch:
    """A tree whose nodes name their own proposers."""
    n = draw(st.integers(1, 5))
    tokens = draw(st.lists(st.integers(0, VOCAB - 1), min_size=n, max_size=n))
    parents = [draw(st.integers(ROOT, i - 1)) for i in range(n)]
    scores = draw(st.none() | st.lists(st.floats(0.1, 1.0), min_size=n, max_size=n))
    return Branch(tokens, "merged", parents, scores=scores, proposers=[draw(NAMES) for _ in range(n)])


def scores_of(tree: TokenTree) -> list[float]:
    return [-1.0 if np.isnan(score) else score for score in tree.scores or [np.nan] * len(tree)]


@given(st.lists(st.one_of(branches().filter(lambda b: b.q is None), merged()), max_size=8), BUDGETS)
def test_a_node_has_all_its_proposers_and_the_first_score(proposals: list[Branch], budget: int) -> None:
    tree = compose(proposals, budget)
    for node, score in enumerate(scores_of(tree)):
        same = [(b, i) for b in proposals for i, path in enumerate(paths(b)) if path == path_of(tree, node)]
        guesses = [(b, i) for b, i in same if not b.probe]
        names = [name for b, i in guesses for name in (b.proposers[i] if b.proposers is not None else (b.source,))]
        assert names_of(tree, node) == set(names)
        if not tree.probe[node]:
            assert tree.source_names[tree.sources[node]] == names[0], "the first proposer owns the node"
        assert score == next((b.scores[i] for b, i in same if b.scores is not None), -1.0)
    assert "merged" not in tree.source_names


@given(st.one_of(branches(), merged()), st.integers(1, 8))
def test_a_single_branch_is_composed_as_by_the_builder(branch: Branch, budget: int) -> None:
    builder = _Builder(budget, draws=True)
    builder.insert(branch)
    slow, fast = builder.build(), compose([branch], budget)
    assert (fast.tokens, fast.parents, fast.probe) == (slow.tokens, slow.parents, slow.probe)
    assert fast.probe_ends == slow.probe_ends
    assert (fast.q is None) == (slow.q is None)
    for node in range(len(slow)):
        assert fast.source_names[fast.sources[node]] == slow.source_names[slow.sources[node]]
        assert names_of(fast, node) == names_of(slow, node)
    assert scores_of(fast) == scores_of(slow)
