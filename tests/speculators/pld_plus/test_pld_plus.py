"""PLD+ with random artefacts, against the paper's equations, also with missing artefacts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Artefacts, Outcome
from engine.tree import EMPTY_TREE, TokenTree
from speculators.pld_plus.speculator import PldPlusAttention, PldPlusConfig, PldPlusHidden
from tests.speculators.drafts import view

HEADS = ((0, 1), (2, 0), (3, 3))
D = 6


def request_of(tokens, request_id=0, n_prompt=None):
    n_prompt = len(tokens) if n_prompt is None else n_prompt
    return view(tokens[:n_prompt], request_id, 50, emitted=tokens[n_prompt:])


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def occurrences(x):
    """Return the positions of equation 1, from 0."""
    t = len(x)
    return [j for j in range(1, t - 1) if x[j] == x[t - 1]]


def span(x, best, k):
    """Return the ``k`` tokens after the best occurrence (section 4.3)."""
    return [] if best is None else x[best + 1 : best + 1 + k]


def literal_h(x, hidden):
    """Return the best occurrence by equation 3; ``hidden`` has a row per forwarded position."""
    t, best, most = len(x), None, None
    for j in occurrences(x):
        similar = cosine(hidden[j - 1].tolist(), hidden[t - 2].tolist())
        if most is None or similar > most:
            best, most = j, similar
    return best


def literal_a(x, attention):
    """Return the best occurrence by equation 2; ``attention`` is that of the last forwarded position."""
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
    """Return a text of few different tokens, the ends of its prompt, chunks and steps, a seed and K."""
    text = draw(st.lists(st.integers(0, 4), min_size=6, max_size=40))
    n_prompt = draw(st.integers(1, len(text) - 2))
    cuts = sorted(draw(st.sets(st.integers(1, n_prompt - 1), max_size=3))) if n_prompt > 1 else []
    ends = [n_prompt + 1]
    while ends[-1] < len(text):
        ends.append(min(len(text), ends[-1] + draw(st.integers(1, 4))))
    return text, n_prompt, cuts, ends, draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 12))


@given(runs())
def test_every_draft_follows_the_equations(run):
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
    known = cuts[-1] if cuts else 0  # states observed so far
    for end in ends:
        committed = text[len(request.context) : end]
        request.context.extend(committed)
        attention = rng.random((len(HEADS), end - 1)).astype(np.float32)
        news = outcome(committed, known, hidden[known : end - 1], attention)
        for speculator in (by_state, by_attention):
            speculator.observe(request, news)
        known = end - 1
        x = text[:end]
        expected = [span(x, best, k) for best in (literal_h(x, hidden), literal_a(x, attention))]
        for budget in (64, 3):
            found = [drafts(s.propose(request, budget)) for s in (by_state, by_attention)]
            assert found == [[one[:budget]] if one else [] for one in expected]
    for speculator in (by_state, by_attention):
        assert speculator.propose(request, 0) == []
        speculator.end(request)


def observed(**changes):
    """Return both variants after ``1 2 3 1 2 4 1 2``; states and attention prefer the occurrence of 2 at 1."""
    hidden = np.eye(8, dtype=np.float32)[[0, 1, 2, 3, 4, 5, 0]]
    attention = np.array([[0, 0.1, 0, 0, 0.3, 0, 0], [0, 0.6, 0, 0, 0, 0, 0]], np.float32)
    config = PldPlusConfig(**{"layer": 1, "heads": HEADS[:2]} | changes)
    made = (PldPlusHidden(config), PldPlusAttention(config))
    request = request_of([1, 2, 3, 1, 2, 4, 1, 2], n_prompt=7)
    for speculator in made:
        speculator.begin(request)
        speculator.observe(request, outcome([2], 0, hidden, attention))
    return request, made


@pytest.mark.parametrize(
    ("changes", "budget", "drafted"),
    [
        ({}, 64, [[3, 1, 2, 4, 1, 2], [4, 1, 2]]),  # the best of several heads decides, not the latest occurrence
        ({"max_candidates": 1}, 64, [[4, 1, 2]]),  # only the latest is ranked
        ({"branch_tokens": 2}, 64, [[3, 1, 2, 4, 1, 2], [4, 1]]),
        ({"branch_tokens": 2}, 8, [[3, 1, 2, 4, 1, 2], [4, 1]]),
        ({"branch_tokens": 2}, 5, [[3, 1, 2], [4, 1]]),
        ({"branch_tokens": 2}, 4, [[3, 1], [4, 1]]),
        ({"branch_tokens": 2}, 3, [[3, 1], [4]]),
        ({"branch_tokens": 2}, 2, [[3], [4]]),
        ({"branch_tokens": 2}, 1, [[3]]),
    ],
)
def test_the_best_occurrence_is_drafted_first_and_others_follow_as_branches(changes, budget, drafted):
    request, made = observed(**changes)
    assert [drafts(one.propose(request, budget)) for one in made] == [drafted] * 2


@pytest.mark.parametrize(("max_branches", "drafted"), [(2, [[3, 2]]), (4, [[3, 2], [4]])])
def test_occurrences_with_the_same_continuation_count_once(max_branches, drafted):
    text = [0, *[2, 3] * 8, 2, 4, 0, 2]
    config = PldPlusConfig(heads=HEADS, max_branches=max_branches, draft_tokens=2, branch_tokens=1)
    speculator, request = PldPlusAttention(config), request_of(text)
    speculator.begin(request)
    speculator.observe(request, outcome([2], attention=np.arange(len(text) - 1)[None, ::-1].astype(np.float32)))
    assert drafts(speculator.propose(request, 64)) == drafted


def test_without_artefacts_nothing_is_drafted():
    request, made = observed()
    request.context.extend([4, 1])
    plain = Outcome([4, 1], TokenTree([4], [-1]), [0])
    for speculator in made:
        speculator.observe(request, plain)
        assert speculator.propose(request, 64) == []  # the artefacts are outdated


def test_a_restarted_speculator_uses_the_states_that_arrive_from_then_on():
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
def test_requests_have_separate_states(variant):
    speculator = variant(PldPlusConfig(layer=1, heads=HEADS))
    requests = [request_of([1, 2, 3, 1, 2], i) for i in range(3)]
    for shift, request in enumerate(requests):
        speculator.begin(request)
        hidden = np.roll(np.eye(4, dtype=np.float32), shift, axis=0)
        speculator.observe(request, outcome([2], 0, hidden, np.array([[0, shift, 0, 0]], np.float32)))
    assert [drafts(speculator.propose(request, 64)) for request in requests] == [[[3, 1, 2]]] * 3
    for request in requests:
        speculator.end(request)
    assert not speculator.states
