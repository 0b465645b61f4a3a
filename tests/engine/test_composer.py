"""Composition: what survives the merge of branches, and who owns it. (Exactness of q: test_verify_exact.py.)"""

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


def proposers(proposals: Sequence[Branch], path: tuple[int, ...], probe: bool) -> list[str]:
    return [b.source for b in proposals if b.probe == probe and path in paths(b)]


@given(BRANCHES, BUDGETS)
def test_the_budget_is_kept(proposals: list[Branch], budget: int) -> None:
    assert len(compose(proposals, budget)) <= budget


@given(BRANCHES)
def test_with_room_for_all_exactly_the_proposed_paths_are_there(proposals: list[Branch]) -> None:
    tree = compose(proposals, 1000)
    assert {path_of(tree, node) for node in range(len(tree))} == {path for b in proposals for path in paths(b)}


@given(BRANCHES, BUDGETS)
def test_every_node_is_on_a_proposed_path_and_acceptable_only_if_proposed_so(
    proposals: list[Branch], budget: int
) -> None:
    tree = compose(proposals, budget)
    for node in range(len(tree)):
        path = path_of(tree, node)
        assert any(path in paths(b) for b in proposals if b.probe == tree.probe[node])


@given(BRANCHES.map(lambda bs: [b for b in bs if b.q is None]), BUDGETS)
def test_the_first_proposer_owns_a_node_and_no_edge_occurs_twice(proposals: list[Branch], budget: int) -> None:
    tree = compose(proposals, budget)
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree)
    for node in range(len(tree)):
        owner = tree.source_names[tree.sources[node]]
        candidates = proposers(proposals, path_of(tree, node), tree.probe[node])
        assert owner in (candidates if tree.probe[node] else candidates[:1])  # an earlier probe may not have fitted


@given(BRANCHES.map(lambda bs: [b for b in bs if b.parents is None and b.q is None]), BUDGETS)
def test_guess_chains_are_cut_only_for_lack_of_room(proposals: list[Branch], budget: int) -> None:
    tree = compose(proposals, budget)
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
    assert all(tree.find(path_of(tree, node)) == node for node in tree.probe_ends), "its read-back would be lost"


def followed(tree: TokenTree, path: Sequence[int]) -> int | None:
    """Where a rule's branch along ``path`` arrives: it takes the first node of every token, whatever lies below."""
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


def test_nothing_in_nothing_out() -> None:
    assert compose([], 10) is EMPTY_TREE
    assert compose([Branch([1], "a")], 0) is EMPTY_TREE
    assert len(compose([Branch([], "a"), Branch([], "b", probe=True)], 5)) == 0


def test_a_guess_turns_a_probe_into_its_own_node() -> None:
    tree = compose([Branch([1, 2], "pool", probe=True), Branch([1, 3], "pld")], 10)
    assert tree.tokens == [1, 2, 3]
    assert tree.probe == [False, True, False]
    assert [tree.source_names[s] for s in tree.sources] == ["pld", "pool", "pld"]
    assert tree.probe_ends == {1}


def test_what_fits_is_kept_when_the_budget_cuts_a_tree() -> None:
    tree = compose([Branch([1, 2, 1, 3], "a", parents=[ROOT, ROOT, ROOT, 2])], 2)
    assert tree.tokens == [1, 2]
    assert tree.parents == [ROOT, ROOT]


# Proposers: who wanted a node, besides its owner.

NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def made_together(draw: st.DrawFn) -> Branch:
    """A tree whose nodes name their own proposers."""
    n = draw(st.integers(1, 5))
    tokens = draw(st.lists(st.integers(0, VOCAB - 1), min_size=n, max_size=n))
    parents = [draw(st.integers(ROOT, i - 1)) for i in range(n)]
    scores = draw(st.none() | st.lists(st.floats(0.1, 1.0), min_size=n, max_size=n))
    return Branch(tokens, "merged", parents, scores=scores, proposers=[draw(NAMES) for _ in range(n)])


def scores_of(tree: TokenTree) -> list[float]:
    return [-1.0 if np.isnan(score) else score for score in tree.scores or [np.nan] * len(tree)]


def names_of(tree: TokenTree, node: int) -> set[str]:
    return {name for i, name in enumerate(tree.source_names) if tree.proposers[node] >> i & 1}


@given(st.lists(st.one_of(branches(), made_together()), max_size=8), BUDGETS)
def test_all_who_proposed_a_node_for_acceptance_are_kept(proposals: list[Branch], budget: int) -> None:
    proposals = [b for b in proposals if b.q is None]
    tree = compose(proposals, budget)
    for node in range(len(tree)):
        path = path_of(tree, node)
        wanted = [
            name
            for b in proposals
            if not b.probe
            for i, p in enumerate(paths(b))
            if p == path
            for name in (b.proposers[i] if b.proposers is not None else (b.source,))
        ]
        assert names_of(tree, node) == set(wanted)
        if not tree.probe[node]:
            assert tree.source_names[tree.sources[node]] == wanted[0], "the first of the first is the owner"
    assert "merged" not in tree.source_names


@given(st.one_of(branches(), made_together()), st.integers(1, 8))
def test_a_single_branch_becomes_what_the_builder_makes_of_it(branch: Branch, budget: int) -> None:
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


@given(st.lists(st.one_of(branches(), made_together()), max_size=8), BUDGETS)
def test_a_node_has_the_score_of_the_first_that_tells_one(proposals: list[Branch], budget: int) -> None:
    tree = compose(proposals, budget)
    for node, score in enumerate(scores_of(tree)):
        path = path_of(tree, node)
        scored = [zip(paths(b), b.scores, strict=True) for b in proposals if b.scores is not None]
        assert score == next((told for pairs in scored for p, told in pairs if p == path), -1.0) or repeats(tree, path)


def repeats(tree: TokenTree, path: tuple[int, ...]) -> bool:
    """Whether several nodes are at the end of a path, of which one has the score: draws stay apart."""
    return sum(path_of(tree, node) == path for node in range(len(tree))) > 1


@given(BRANCHES, BUDGETS)
def test_a_nodes_owner_is_among_its_proposers(proposals: list[Branch], budget: int) -> None:
    tree = compose(proposals, budget)
    for node in range(len(tree)):
        owner = tree.source_names[tree.sources[node]]
        assert names_of(tree, node) == set() if tree.probe[node] else owner in names_of(tree, node)


def test_a_draw_that_meets_anothers_node_is_counted_there() -> None:
    q = np.full((1, VOCAB), 1 / VOCAB, dtype=np.float32)
    tree = compose([Branch([1], "pld"), Branch([1], "drafter", q=q), Branch([1], "drafter", q=q)], 5)
    assert tree.tokens == [1]
    assert names_of(tree, 0) == {"pld", "drafter"}
    assert tree.source_names[tree.sources[0]] == "pld"
    twice = compose([Branch([1], "drafter", q=q), Branch([1], "drafter", q=q)], 5)
    assert [names_of(twice, node) for node in range(len(twice))] == [{"drafter"}] * 2
