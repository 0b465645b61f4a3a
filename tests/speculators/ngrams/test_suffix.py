"""Published suffix decoding against the counts of all substrings."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculators.ngrams.occurrences import Occurrences
from speculators.ngrams.suffix import SuffixConfig, SuffixDecoding
from tests.speculators.drafts import first_draft, paths_of, view

EVERY = 10**6
FAITHFUL = SuffixConfig(mode="paper", max_occurrences=EVERY)
TEXTS = st.integers(2, 4).flatmap(lambda n: st.lists(st.integers(0, n), max_size=40))


def count_followers(documents):
    """Return how often each token follows every substring of the documents."""
    found = defaultdict(Counter)
    for document in documents:
        for start in range(len(document)):
            for end in range(start, len(document)):
                found[tuple(document[start:end])][document[end]] += 1
    return found


def literal_draft(followers, match, n_tokens, least):
    """Return the sum of the path probabilities of the best ``n_tokens`` nodes after ``match``."""
    total, heap = 0.0, [(-1.0, match)]
    while heap and n_tokens >= 0 and -heap[0][0] >= least - 1e-12:
        path, text = heapq.heappop(heap)
        total, n_tokens = total - path, n_tokens - 1
        after = followers.get(text, {})
        for token, count in after.items():
            heapq.heappush(heap, (path * count / sum(after.values()), (*text, token)))
    return total - 1.0


def literal_best(context, texts, budget, config=FAITHFUL):
    best = 0.0
    for documents in texts:
        followers = count_followers(documents)
        for match in range(1, min(len(context), config.max_match) + 1):
            n = min(int(config.draft_base + config.draft_factor * match), config.max_draft, budget)
            best = max(best, literal_draft(followers, tuple(context[-match:]), n, config.min_probability))
    return best


def expected(branches):
    """Return the sum of path probabilities by the branches' scores, the paths, and their probabilities."""
    paths, reach = paths_of(branches), {(): 1.0}
    for path, score in zip(paths, (score for branch in branches for score in branch.scores), strict=True):
        reach[path] = reach[path[:-1]] * score
    assert len(reach) == len(paths) + 1
    return sum(reach.values()) - 1.0, paths, [reach[path] for path in paths]


def check(branches, context, texts, budget, config=FAITHFUL):
    total, paths, reach = expected(branches)
    assert total == pytest.approx(literal_best(context, texts, budget, config), abs=1e-6)
    assert len(paths) <= min(budget, config.max_draft)
    assert all(value >= config.min_probability - 1e-9 for value in reach)
    known = [count_followers(documents) for documents in texts]
    for path in paths:  # each was written before, after the last token
        assert any(path[-1] in followers.get((context[-1], *path[:-1]), {}) for followers in known)


@given(TEXTS, st.integers(1, 70))
def test_drafts_are_as_good_as_those_of_all_substrings(text, budget):
    for end in range(1, len(text) + 1):
        context = text[:end]
        check(first_draft(SuffixDecoding(FAITHFUL), view(context), budget), context, [[context]], budget)


@given(TEXTS, st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.5, 1.0, 4.0]), st.sampled_from([0.1, 0.3, 1.0]))
def test_settings_limit_drafts_as_documented(text, max_match, base, factor, least):
    config = SuffixConfig("paper", max_match, base, factor, max_draft=9, min_probability=least, max_occurrences=EVERY)
    if text:
        check(first_draft(SuffixDecoding(config), view(text), 20), text, [[text]], 20, config)


@given(st.lists(TEXTS, max_size=4), TEXTS.filter(bool))
def test_earlier_outputs_count_as_documents_of_their_own(outputs, context):
    """No match and no draft crosses from one into the next, nor into another scope; prompts do not count."""
    shared = SuffixDecoding(SuffixConfig(mode="paper", max_occurrences=EVERY, shared=True))
    for output in outputs:
        first_draft(shared, view([0, 1, 2, 9], scope="a", emitted=output))
    check(first_draft(shared, view(context, scope="a"), 30), context, [[context], outputs], 30)
    check(first_draft(shared, view(context, scope="b"), 30), context, [[context]], 30)


@pytest.mark.parametrize("history", [0, 1, 10, 100])
def test_the_history_is_bounded_and_keeps_the_latest(history):
    speculator = SuffixDecoding(SuffixConfig(mode="paper", shared=True, history=history))
    for i in range(20):
        speculator.end(view([7], i, scope="a", emitted=[*range(10 * i, 10 * i + 8)]))
    kept = speculator._earlier["a"][0].tolist() if history else []
    assert len(kept) <= history
    assert history == 0 or kept == [t for i in range(20) for t in (*range(10 * i, 10 * i + 8), -1)][-history:]
    assert (first_draft(speculator, view([193, 194], scope="a"), 8) != []) == (history >= 10)


def test_a_long_match_is_found_before_any_number_of_short_ones():
    text = [1, 2, 3, 4, 5, 6, 7, *[3, 9] * 2000, 1, 2, 3]
    (branch,) = first_draft(SuffixDecoding(), view(text), 4)
    assert list(branch.tokens) == [4, 5, 6, 7]


@given(TEXTS, TEXTS.filter(bool), st.integers(1, 8), st.integers(1, 50))
def test_matches_are_those_of_a_plain_search(text, context, longest, piece):
    found = []
    for end in range(len(text) - 2, -1, -1):
        n = 0
        while n < min(longest, end + 1, len(context)) and text[end - n] == context[-1 - n]:
            n += 1
        if n:
            found.append((n, end + 1))
    known, text = Occurrences(), np.array(text, np.int32)
    for end in [*range(0, len(text), piece), len(text)]:
        known.matches(text[:end], np.array(context, np.int32), longest)
    lengths, starts = known.matches(text, np.array(context, np.int32), longest)
    assert list(zip(lengths.tolist(), starts.tolist(), strict=True)) == found


def test_nothing_is_drafted_from_nothing():
    for prompt, budget in (([], 8), ([1], 8), ([1, 1, 1], 0)):
        assert first_draft(SuffixDecoding(), view(prompt), budget) == []
