"""PLD+ on made-up artefacts: the paper's equations read literally, and what happens when some are missing."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import Artefacts, Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE, TokenTree
from speculators.pld_plus.hidden_states import HiddenStates
from speculators.pld_plus.speculator import PldPlusAttention, PldPlusConfig, PldPlusHidden, paper_layer
from speculators.registry import SpeculatorOptions, create

HEADS = ((0, 1), (2, 0), (3, 3))
D = 6


def request_of(tokens, request_id=0, n_prompt=None):
    n_prompt = len(tokens) if n_prompt is None else n_prompt
    return RequestView.of(request_id, Request(tokens[:n_prompt], SamplingParams(), emitted=tokens[n_prompt:]), 50)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def occurrences(x):
    """Equation 1, positions counted from 0."""
    t = len(x)
    return [j for j in range(1, t - 1) if x[j] == x[t - 1]]


def span(x, best, k):
    """Section 4.3: what followed the best occurrence."""
    return [] if best is None else x[best + 1 : best + 1 + k]


def literal_h(x, hidden):
    """Equation 3: ``hidden`` holds the state of every forwarded position, one row each."""
    t, best, most = len(x), None, None
    for j in occurrences(x):
        similar = cosine(hidden[j - 1].tolist(), hidden[t - 2].tolist())
        if most is None or similar > most:
            best, most = j, similar
    return best


def literal_a(x, attention):
    """Equation 2: ``attention[head][j]`` of the last forwarded position."""
    best, most = None, None
    for j in occurrences(x):
        weight = max(row[j] for row in attention.tolist())
        if most is None or weight > most:
            best, most = j, weight
    return best


def outcome(tokens, prompt_start=0, hidden=None, attention=None):
    return Outcome(tokens, EMPTY_TREE, prompt_start=prompt_start, artefacts=Artefacts(hidden, attention))


def drafts(branches):
    return [list(branch.tokens) for branch in branches]


@st.composite
def runs(draw):
    """A text over few tokens, where its prompt ends, how the prompt is cut in chunks and the output in steps."""
    text = draw(st.lists(st.integers(0, 4), min_size=6, max_size=40))
    n_prompt = draw(st.integers(1, len(text) - 2))
    cuts = sorted(draw(st.sets(st.integers(1, n_prompt - 1), max_size=3))) if n_prompt > 1 else []
    ends = [n_prompt + 1]
    while ends[-1] < len(text):
        ends.append(min(len(text), ends[-1] + draw(st.integers(1, 4))))
    return text, n_prompt, cuts, ends, draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 12))


@given(runs())
def test_every_draft_is_the_one_the_equations_give(run):
    text, n_prompt, cuts, ends, seed, k = run
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((len(text), D)).astype(np.float32)
    config = replace(PldPlusConfig.paper(2, HEADS), draft_tokens=k)
    by_state, by_attention = PldPlusHidden(config), PldPlusAttention(config)
    request = request_of(text[:n_prompt])
    for speculator in (by_state, by_attention):
        speculator.begin(request)
    for first, last in itertools.pairwise([0, *cuts]):
        by_state.observe(request, outcome([], first, hidden=hidden[first:last]))
    known = cuts[-1] if cuts else 0  # states told so far
    for end in ends:
        committed = text[len(request.context) : end]
        request.context.extend(committed)
        attention = rng.random((len(HEADS), end - 1)).astype(np.float32)
        news = outcome(committed, known, hidden[known : end - 1], attention)
        for speculator in (by_state, by_attention):
            speculator.observe(request, news)
        known = end - 1
        x = text[:end]
        wanted = [span(x, best, k) for best in (literal_h(x, hidden), literal_a(x, attention))]
        for budget in (64, 3):
            found = [drafts(s.propose(request, budget)) for s in (by_state, by_attention)]
            assert found == [[one[:budget]] if one else [] for one in wanted]
    for speculator in (by_state, by_attention):
        assert speculator.propose(request, 0) == []
        speculator.end(request)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_rows_grow_without_changing(sizes, capacity, seed):
    rng = np.random.default_rng(seed)
    rows, states = HiddenStates(capacity), np.zeros((0, 5), np.float32)
    for size in sizes:
        new = rng.standard_normal((size, 5)).astype(np.float32)
        rows.put(len(states), new)
        states = np.concatenate((states, new))
        unit = states / np.linalg.norm(states, axis=1, keepdims=True)
        assert (rows.first, rows.end) == (0, len(states))
        assert np.allclose(rows.cosines(np.arange(len(states))), unit @ unit[-1], atol=1e-5)


def test_a_state_of_zeros_is_like_nothing():
    rows = HiddenStates(1)
    rows.put(0, np.array([[0, 0], [3, 4]], np.float32))
    assert rows.cosines(np.array([0, 1])).tolist() == pytest.approx([0, 1])


@pytest.fixture
def told():
    """Both variants, told everything about ``1 2 3 1 2 4 1 2`` but for the last token: states and attention favour
    the earlier occurrence of 2, at position 1."""
    context = [1, 2, 3, 1, 2, 4, 1, 2]
    hidden = np.eye(8, dtype=np.float32)[[0, 1, 2, 3, 4, 5, 0]]
    attention = np.array([[0, 0.1, 0, 0, 0.3, 0, 0], [0, 0.6, 0, 0, 0, 0, 0]], np.float32)

    def make(**changes):
        config = PldPlusConfig(**{"layer": 1, "heads": HEADS[:2]} | changes)
        made = (PldPlusHidden(config), PldPlusAttention(config))
        request = request_of(context, n_prompt=7)
        for speculator in made:
            speculator.begin(request)
            speculator.observe(request, outcome([2], 0, hidden, attention))
        return request, made

    return make


def test_the_best_of_several_heads_decides_and_not_the_latest_occurrence(told):
    request, made = told()
    assert [drafts(one.propose(request, 64)) for one in made] == [[[3, 1, 2, 4, 1, 2], [4, 1, 2]]] * 2


def test_further_occurrences_follow_as_branches(told):
    request, made = told(branch_tokens=2)
    for budget, wanted in {
        64: [[3, 1, 2, 4, 1, 2], [4, 1]],
        8: [[3, 1, 2, 4, 1, 2], [4, 1]],
        5: [[3, 1, 2], [4, 1]],
        4: [[3, 1], [4, 1]],
        3: [[3, 1], [4]],
        2: [[3], [4]],
        1: [[3]],
    }.items():
        assert [drafts(one.propose(request, budget)) for one in made] == [wanted] * 2


def test_scores_are_chances_that_grow_along_a_span_and_shrink_from_branch_to_branch(told):
    request, made = told()
    for speculator in made:
        best, further = speculator.propose(request, 64)
        for branch in (best, further):
            assert len(branch.scores) == len(branch.tokens)
            assert all(0 < low < high < 0.8 for low, high in itertools.pairwise(branch.scores))
        assert best.scores[0] > further.scores[0]
        assert best.scores[0] + further.scores[0] < 1


def test_occurrences_with_the_same_continuation_count_once():
    text = [0, *[2, 3] * 8, 2, 4, 0, 2]
    speculator = PldPlusAttention(PldPlusConfig(heads=HEADS, max_branches=2, draft_tokens=2, branch_tokens=1))
    request = request_of(text)
    speculator.begin(request)
    speculator.observe(request, outcome([2], attention=np.arange(len(text) - 1)[None, ::-1].astype(np.float32)))
    assert drafts(speculator.propose(request, 64)) == [[3, 2]]  # all that are tried, the latest is not
    few = PldPlusAttention(PldPlusConfig(heads=HEADS, max_branches=4, draft_tokens=2, branch_tokens=1))
    few.begin(request)
    few.observe(request, outcome([2], attention=np.arange(len(text) - 1)[None, ::-1].astype(np.float32)))
    assert drafts(few.propose(request, 64)) == [[3, 2], [4]]


def test_only_the_latest_candidates_are_ranked(told):
    request, made = told(max_candidates=1)
    assert [drafts(one.propose(request, 64)) for one in made] == [[[4, 1, 2]]] * 2


def test_without_artefacts_nothing_is_drafted(told):
    request, made = told()
    request.context.extend([4, 1])
    plain = Outcome([4, 1], TokenTree([4], [-1]), [0])
    for speculator in made:
        speculator.observe(request, plain)
        assert speculator.propose(request, 64) == []  # what was told is outdated


def test_a_restarted_speculator_uses_what_it_is_told_from_then_on():
    context = [7, 5, 6, 7, 5, 9, 7]
    request = request_of(context, n_prompt=3)
    speculator = PldPlusHidden(PldPlusConfig(layer=0))
    speculator.begin(request)
    request.context.extend([5, 8, 7, 5])
    states = np.array([[1, 0], [0, 1], [1, 1], [0.9, 0.1]], np.float32)  # positions 6 to 9
    speculator.observe(request, outcome([5, 8, 7, 5], 0, states))
    # Of the 5s at positions 1, 4 and 7 only the last has a known state before it.
    assert drafts(speculator.propose(request, 64)) == [[8, 7, 5]]


@pytest.mark.parametrize("variant", [PldPlusHidden, PldPlusAttention])
def test_requests_do_not_mix_and_leave_nothing(variant, told):
    speculator = variant(PldPlusConfig(layer=1, heads=HEADS))
    requests = [request_of([1, 2, 3, 1, 2], i) for i in range(3)]
    for shift, request in enumerate(requests):
        speculator.begin(request)
        hidden = np.roll(np.eye(4, dtype=np.float32), shift, axis=0)
        attention = np.array([[0, shift, 0, 0]], np.float32)
        speculator.observe(request, outcome([2], 0, hidden, attention))
    assert [drafts(speculator.propose(request, 64)) for request in requests] == [[[3, 1, 2]]] * 3
    for request in requests:
        speculator.end(request)
    assert not vars(speculator).get("_states", {})
    assert not vars(speculator).get("_rows", {})


def test_needs_and_names():
    options = SpeculatorOptions(pld_plus=PldPlusConfig(layer=3, dims=16, heads=HEADS))
    assert create("pld-plus-h", options).needs == Needs(hidden_layer=3, hidden_dims=16)
    assert create("pld-plus-a", options).needs == Needs(heads=HEADS)
    assert create("pld-plus-a+pld-plus-h", options).needs == Needs(hidden_layer=3, hidden_dims=16, heads=HEADS)


def test_a_method_without_its_input_says_what_it_lacks():
    with pytest.raises(UnknownMethodError, match=r"pld_plus\.layer"):
        create("pld-plus-h")
    with pytest.raises(UnknownMethodError, match="--heads FILE") as caught:
        create("pld+pld-plus-a")
    assert caught.value.param == "method"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"draft_tokens": 0}, "draft_tokens"),
        ({"max_branches": 0}, "max_branches"),
        ({"max_candidates": 0}, "max_candidates"),
        ({"branch_tokens": 0}, "branch_tokens"),
        ({"layer": -1}, "layer -1"),
        ({"dims": -1}, "dims -1"),
        ({"heads": ((0, -1),)}, r"\(0, -1\)"),
        ({"heads": ((1, 1), (1, 1))}, "different"),
    ],
)
def test_wrong_settings_are_named(wrong, named):
    with pytest.raises(ConfigError, match=named):
        PldPlusConfig(**wrong)


def test_the_published_depth():
    assert paper_layer(32) == 9
    assert [paper_layer(n) for n in (1, 2, 4, 8, 40, 80)] == [0, 0, 1, 2, 11, 22]
    paper = PldPlusConfig.paper(9)
    assert (paper.draft_tokens, paper.max_branches, paper.dims, paper.layer) == (70, 1, 0, 9)
