"""Suffix decoding as published, against a suffix trie that is really built."""

import heapq
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.protocol import Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE, ROOT
from speculators.ngrams.occurrences import Occurrences
from speculators.ngrams.suffix import SuffixConfig, SuffixDecoding
from speculators.testing import HashTarget

EVERY = 10**6
FAITHFUL = SuffixConfig(mode="paper", max_occurrences=EVERY)
TEXTS = st.integers(2, 4).flatmap(lambda n: st.lists(st.integers(0, n), max_size=40))


def view(tokens, n_prompt=None, scope="", request_id=0):
    n = len(tokens) if n_prompt is None else n_prompt
    request = Request(tokens[:n], SamplingParams(), scope=scope, emitted=tokens[n:])
    return RequestView.of(request_id, request, 64)


class Node:
    def __init__(self):
        self.count = 0
        self.children = {}


def trie(documents):
    """All suffixes of all documents, with counts."""
    root = Node()
    for document in documents:
        for start in range(len(document)):
            node = root
            for token in document[start:]:
                node = node.children.setdefault(token, Node())
                node.count += 1
    return root


def descend(node, tokens):
    for token in tokens:
        node = node.children.get(token)
        if node is None:
            return None
    return node


def literal_draft(node, n_tokens, least):
    """Sum of the path probabilities of the best ``n_tokens`` nodes below ``node``; branch frequencies."""
    total, order = 0.0, count()
    heap = []

    def branch(parent, path):
        following = sum(child.count for child in parent.children.values())
        for child in parent.children.values():
            heapq.heappush(heap, (-path * child.count / following, next(order), child))

    branch(node, 1.0)
    for _ in range(n_tokens):
        if not heap or -heap[0][0] < least - 1e-12:
            break
        path, _, node = heapq.heappop(heap)
        total -= path
        branch(node, -path)
    return total


def literal_best(context, texts, budget, config=FAITHFUL):
    """The best sum over all texts and all lengths of match."""
    best = 0.0
    for documents in texts:
        root = trie(documents)
        for match in range(1, min(len(context), config.max_match) + 1):
            node = descend(root, context[-match:])
            if node is not None:
                n = min(int(config.draft_base + config.draft_factor * match), config.max_draft, budget)
                best = max(best, literal_draft(node, n, config.min_probability))
    return best


def expected(branches):
    """Sum of path probabilities by the branch's own scores, and its paths."""
    reach, paths = {ROOT: 1.0}, {ROOT: ()}
    for branch in branches:
        for node, (token, parent, score) in enumerate(zip(branch.tokens, branch.parents, branch.scores, strict=True)):
            reach[node], paths[node] = reach[parent] * score, (*paths[parent], token)
    reach.pop(ROOT)
    paths.pop(ROOT)
    assert len(set(paths.values())) == len(paths)
    return sum(reach.values()), list(paths.values()), list(reach.values())


def check(branches, context, texts, budget, config=FAITHFUL):
    total, paths, reach = expected(branches)
    assert total == pytest.approx(literal_best(context, texts, budget, config), abs=1e-6)
    assert len(paths) <= min(budget, config.max_draft)
    assert all(value >= config.min_probability - 1e-9 for value in reach)
    roots = [trie(documents) for documents in texts]
    for path in paths:  # each was written before, behind the last token
        assert any(descend(root, [context[-1], *path]) is not None for root in roots)


@given(TEXTS, st.integers(1, 70))
def test_drafts_are_as_good_as_those_of_a_suffix_tree(text, budget):
    for end in range(1, len(text) + 1):
        context = text[:end]
        check(SuffixDecoding(FAITHFUL).propose(view(context), budget), context, [[context]], budget)


@given(TEXTS, st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.5, 1.0, 4.0]), st.sampled_from([0.1, 0.3, 1.0]))
def test_every_setting_means_what_it_says(text, max_match, base, factor, least):
    config = SuffixConfig(
        "paper",
        max_match,
        draft_base=base,
        draft_factor=factor,
        max_draft=9,
        min_probability=least,
        max_occurrences=EVERY,
    )
    if text:
        check(SuffixDecoding(config).propose(view(text), 20), text, [[text]], 20, config)


@given(st.lists(TEXTS, max_size=4), TEXTS.filter(bool))
def test_earlier_outputs_count_as_documents_of_their_own(outputs, context):
    """No match and no draft goes from one into the next."""
    shared = SuffixDecoding(SuffixConfig(mode="paper", max_occurrences=EVERY, shared=True))
    for i, output in enumerate(outputs):
        request = view([9, *output], 1, "a", i)
        shared.begin(request)
        shared.end(request)
    check(shared.propose(view(context, scope="a"), 30), context, [[context], outputs], 30)
    check(shared.propose(view(context, scope="b"), 30), context, [[context]], 30)


@given(st.lists(st.tuples(st.booleans(), TEXTS), max_size=8))
def test_what_one_scope_wrote_is_never_drafted_in_another(requests):
    speculator = SuffixDecoding(SuffixConfig(mode="paper", shared=True))
    for i, (first, output) in enumerate(requests):
        home = 0 if first else 100
        request = view([home + 50, *(home + token for token in output)], 1, "a" if first else "b", i)
        for branch in speculator.propose(request, 30):
            assert all(home <= token < home + 100 for token in branch.tokens)
        speculator.end(request)


def test_by_default_nothing_outlives_its_request():
    speculator = SuffixDecoding()
    request = view([1, 2, 3, 1, 2, 3], 2)
    speculator.begin(request)
    speculator.end(request)
    assert speculator._earlier == {}
    assert speculator.propose(view([1, 2]), 8) == []


@pytest.mark.parametrize("history", [0, 1, 10, 100])
def test_the_history_is_bounded_and_keeps_the_latest(history):
    speculator = SuffixDecoding(SuffixConfig(mode="paper", shared=True, history=history))
    for i in range(20):
        speculator.end(view([7, *range(10 * i, 10 * i + 8)], 1, "a", i))
    kept = speculator._earlier["a"].view.tolist() if history else []
    assert len(kept) <= history
    assert history == 0 or kept == [t for i in range(20) for t in (*range(10 * i, 10 * i + 8), -1)][-history:]
    assert (speculator.propose(view([193, 194], scope="a"), 8) != []) == (history >= 10)
    assert (history == 0) == (speculator._earlier == {})


def test_only_outputs_are_kept():
    speculator = SuffixDecoding(SuffixConfig(mode="paper", shared=True))
    speculator.end(view([1, 2, 3, 4], 4, "a"))
    speculator.end(view([1, 2, 3, 4, 5, 6], 4, "a"))
    assert speculator._earlier["a"].view.tolist() == [5, 6, -1]


def test_a_long_match_is_found_behind_any_number_of_short_ones():
    text = [1, 2, 3, 4, 5, 6, 7, *[3, 9] * 2000, 1, 2, 3]
    (branch,) = SuffixDecoding().propose(view(text), 4)
    assert list(branch.tokens) == [4, 5, 6, 7]


def test_a_fresh_loop_is_followed_round_and_round():
    text = [8, *[1, 2] * 10]
    (branch,) = SuffixDecoding().propose(view(text), 60)
    assert len(branch.tokens) >= 10
    assert list(branch.tokens) == [1, 2] * (len(branch.tokens) // 2)


def test_the_most_recent_occurrences_are_followed():
    text = [1, 2] * 3 + [1, 3] * 2 + [1]
    (branch,) = SuffixDecoding(SuffixConfig(mode="paper", max_occurrences=2)).propose(view(text), 1)
    assert (list(branch.tokens), branch.scores) == ([3], [1.0])


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


def test_it_needs_the_text_alone_and_drafts_nothing_from_nothing():
    speculator = SuffixDecoding()
    assert speculator.needs == Needs()
    assert speculator.propose(view([]), 8) == []
    assert speculator.propose(view([1]), 8) == []
    assert speculator.propose(view([1, 1, 1]), 0) == []
    speculator.observe(view([1]), Outcome([1], EMPTY_TREE))


def test_the_text_is_the_plain_one(decode):
    target = HashTarget(48, n_successors=2)
    prompt = [3, 1, 4, 1, 5]
    tokens, n_steps = decode(SuffixDecoding(), target, prompt, 200)
    assert tokens == target.generate(prompt, 200)
    assert n_steps < 120


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"mode": "best"}, "mode must be mixed or paper"),
        ({"max_match": 0}, "max_match must be at least 1"),
        ({"max_draft": 0}, "max_draft must be at least 1"),
        ({"max_occurrences": 0}, "max_occurrences must be at least 1"),
        ({"history": -1}, "history"),
        ({"draft_factor": -1.0}, "draft_factor"),
        ({"min_probability": 0.0}, "min_probability must lie in"),
    ],
)
def test_wrong_settings_are_named(bad, message):
    with pytest.raises(ConfigError, match=message):
        SuffixConfig(**bad)
