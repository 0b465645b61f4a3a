"""ANPD against counting in the whole text, and its tree against every path counted one by one."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculators.ngrams.anpd import Anpd, AnpdConfig
from speculators.ngrams.pld import PromptLookup
from speculators.testing import HashTarget
from tests.speculators.drafts import first_draft, paths_of, steps, tokens_of, view

CONTEXTS = st.lists(st.integers(0, 3), min_size=0, max_size=40)
# Only the depth and the lowest path probability limit the tree.
UNLIMITED = AnpdConfig(draft_tokens=4, max_nodes=10**6, max_places=10**6, near_places=10**6, near_path=0.0)


def published(text, ngram, n_tokens):
    """The published draft: the most frequent successor of the longest context in the text; of equals the latest new."""
    tokens = list(text)
    for _ in range(n_tokens):
        for n in range(min(ngram, len(tokens) + 1), 1, -1):
            ends = [end for end in range(n - 1, len(text)) if text[end - n + 1 : end] == tokens[len(tokens) - n + 1 :]]
            counts = Counter(text[end] for end in ends)
            if counts:
                tokens.append([token for token, count in counts.items() if count == max(counts.values())][-1])
                break
    return tokens[len(text) :]


def propose(context, config=None, budget=64):
    return first_draft(Anpd(config), view(context), budget)


@given(CONTEXTS, st.integers(2, 6), st.integers(1, 8))
def test_the_published_draft_equals_counting_in_the_whole_text(context, ngram, draft_tokens):
    config = replace(AnpdConfig.paper(), ngram=ngram, draft_tokens=draft_tokens)
    assert tokens_of(propose(context, config)) == published(context, ngram, draft_tokens)


@pytest.mark.parametrize("config", [AnpdConfig.paper(), AnpdConfig()])
def test_every_step_of_a_decode_drafts_what_a_new_request_would(config):
    request = view([1, 2, 3, 1, 2, 5])
    for step in steps(Anpd(config), HashTarget(40, 2), request, 100):
        text = request.context.view.tolist()
        assert step.branches == propose(text, config)
        assert config.branching or tokens_of(step.branches) == published(text, 5, 6)


@given(CONTEXTS, st.integers(0, 40))
def test_a_draft_after_an_earlier_place_reads_nothing_of_what_follows(context, n_first):
    anpd, whole = Anpd(UNLIMITED), view(context)
    first = replace(whole, context=whole.context.before(min(n_first, len(context))))
    anpd.begin(whole)
    anpd.propose(whole, 64)
    assert anpd.propose(first, 64) == propose(first.context.view.tolist(), UNLIMITED)


def naive_paths(context, config):
    """Every path with its score, by counting all places that match the end of each prefix."""
    scores = {}

    def grow(path, probability):
        past = [*context, *path]
        places = []
        for place in range(1, len(context)):
            match = 0
            while match < min(config.ngram - 1, place, len(past)) and context[place - 1 - match] == past[-1 - match]:
                match += 1
            if match:
                places.append((context[place], match))
        votes = Counter()
        for token, match in places:
            votes[token] += config.level_weight**match
        evidence = sum(match for _, match in places)
        for token, vote in votes.items():
            score = vote / votes.total() * evidence / (evidence + config.escape)
            if probability * score >= config.min_path:
                scores[(*path, token)] = score
                if len(path) + 1 < config.draft_tokens:
                    grow((*path, token), probability * score)

    if context:
        grow((), 1.0)
    return scores


@given(CONTEXTS, st.integers(2, 5), st.sampled_from([0.0, 0.5, 1.5]))
def test_the_tree_holds_every_probable_path_with_the_score_of_the_formula(context, ngram, escape):
    config = replace(UNLIMITED, ngram=ngram, escape=escape, min_path=0.02)
    expected, branches = naive_paths(context, config), propose(context, config, budget=10**6)
    found = {path: score for b in branches for path, score in zip(paths_of([b]), b.scores, strict=True)}
    assert len(found) == len(paths_of(branches))
    for path in expected.keys() ^ found.keys():  # rounding decides about a probability at the limit
        every = expected | found
        assert prod(every[path[:n]] for n in range(1, len(path) + 1)) == pytest.approx(0.02, abs=1e-9)
    for path in found.keys() & expected.keys():
        assert found[path] == pytest.approx(expected[path])


@given(CONTEXTS, st.integers(0, 20), st.booleans())
def test_drafts_stay_within_the_budget_and_scores_are_probabilities(context, budget, branching):
    for branch in propose(context, AnpdConfig(branching=branching), budget):
        assert 0 < len(branch.tokens) <= budget
        assert all(type(token) is int for token in branch.tokens)
        siblings = Counter()
        for parent, score in zip(branch.above, branch.scores, strict=True):
            assert 0.0 < score <= 1.0
            siblings[parent] += score
        assert max(siblings.values()) <= 1.0 + 1e-9


def test_a_long_prompt_is_learnt_from_its_end_only():
    drafted = propose([1, 2, 3, 4, 1, 5, 6, 1], AnpdConfig(prompt_window=4))  # the 2 lies outside
    assert [path for path in paths_of(drafted) if len(path) == 1] == [(5,)]


def test_nothing_is_drafted_without_context_or_budget_or_repetition():
    for config in (AnpdConfig(), AnpdConfig.paper(), AnpdConfig(prompt_window=0)):
        assert propose([], config) == propose([1], config) == propose([1, 2, 3], config) == []
        assert propose([1, 1, 1], config, budget=0) == []


@pytest.mark.parametrize("make", [Anpd, PromptLookup])
def test_a_draft_after_a_long_context_allocates_no_array_of_its_size(make):
    rng = random.Random(0)
    speculator, request = make(), view([rng.randrange(800) for _ in range(262_144)], vocab_size=800, max_tokens=200)
    speculator.begin(request)
    speculator.propose(request, 64)
    for _ in range(5):
        request.context.extend([rng.randrange(800)])
        tracemalloc.start()
        drafted = speculator.propose(request, 64)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert drafted
        assert peak < 150_000  # one byte per token of the context would be more
