"""ANPD against count tables kept to the letter, and its tree against every path counted one by one."""

import random
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.protocol import RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.token_buffer import TokenBuffer
from speculators.ngrams.anpd import Anpd, AnpdConfig
from speculators.ngrams.matches import NgramPlaces, longest_matches
from speculators.testing import HashTarget
from tests.support.counted_work import counted

CONTEXTS = st.lists(st.integers(0, 3), min_size=0, max_size=40)
# Trees as the plain formula has them: no limit bites but the depth and the least probability.
UNLIMITED = AnpdConfig(draft_tokens=4, max_nodes=10**6, max_places=10**6, near_places=10**6, near_path=0.0)


class Tables:
    """The published method, literally: one count table per order, updated token by token."""

    def __init__(self, ngram):
        self.ngram = ngram
        self.tables = {n: defaultdict(dict) for n in range(2, ngram + 1)}
        self.text = []

    def update(self, token):
        for n, table in self.tables.items():
            if len(self.text) >= n - 1:
                counts = table[tuple(self.text[len(self.text) - n + 1 :])]
                counts[token] = counts.get(token, 0) + 1
        self.text.append(token)

    def query(self, tokens):
        """The most frequent successor of the longest known context; among equals the one entered last."""
        for n in range(self.ngram, 1, -1):
            if len(tokens) >= n - 1:
                counts = self.tables[n].get(tuple(tokens[len(tokens) - n + 1 :]))
                if counts:
                    best = max(counts.values())
                    return [token for token, count in counts.items() if count == best][-1]
        return None

    def draft(self, n_tokens):
        tokens = list(self.text)
        for _ in range(n_tokens):
            token = self.query(tokens)
            if token is None:
                break
            tokens.append(token)
        return tokens[len(self.text) :]


def request_of(context, max_tokens=16):
    return RequestView.of(0, Request(context, SamplingParams(max_tokens=max_tokens)), 64)


def propose(context, config=None, budget=64):
    speculator = Anpd(config)
    request = request_of(context)
    speculator.begin(request)
    return speculator.propose(request, budget)


def paths(branch):
    """path -> score of its last token."""
    found = {}
    by_node = []
    for token, parent, score in zip(branch.tokens, branch.parents, branch.scores, strict=True):
        path = ((*by_node[parent], token)) if parent >= 0 else (token,)
        assert path not in found, "two children of a node carry the same token"
        by_node.append(path)
        found[path] = score
    return found


@given(CONTEXTS, st.integers(2, 6), st.integers(1, 8))
def test_the_published_draft_equals_the_count_tables(context, ngram, draft_tokens):
    tables = Tables(ngram)
    for token in context:
        tables.update(token)
    branches = propose(context, replace(AnpdConfig.paper(), ngram=ngram, draft_tokens=draft_tokens))
    assert [list(branch.tokens) for branch in branches] == ([draft] if (draft := tables.draft(draft_tokens)) else [])


@pytest.mark.parametrize("n_successors", [1, 2, 4])
def test_every_step_of_a_decode_equals_the_count_tables(decode_steps, new_request, n_successors):
    target = HashTarget(40, n_successors)
    prompt = [1, 2, 3, 1, 2, 5]
    tables = Tables(5)
    for token in prompt:
        tables.update(token)
    request = new_request(prompt, vocab_size=40)
    for step in decode_steps(Anpd(AnpdConfig.paper()), target, request, 150):
        for token in step.request.context.view[len(tables.text) :].tolist():
            tables.update(token)
        draft = tables.draft(6)
        assert [list(branch.tokens) for branch in step.branches] == ([draft] if draft else [])


def naive_paths(context, config):
    """Every path with its score, by counting: for each prefix, all places whose past matches its end."""
    longest = config.ngram - 1
    scores = {}

    def grow(path, probability):
        if len(path) == config.draft_tokens:
            return
        past = [*context, *path]
        places = []
        for place in range(1, len(context)):
            match = 0
            while match < min(longest, place, len(past)) and context[place - 1 - match] == past[-1 - match]:
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
                grow((*path, token), probability * score)

    if context:
        grow((), 1.0)
    return scores


@given(CONTEXTS, st.integers(2, 5), st.sampled_from([0.0, 0.5, 1.5]))
def test_the_tree_holds_every_probable_path_with_the_score_of_the_formula(context, ngram, escape):
    config = replace(UNLIMITED, ngram=ngram, escape=escape, min_path=0.02)
    expected = naive_paths(context, config)
    branches = propose(context, config, budget=10**6)
    found = paths(branches[0]) if branches else {}
    # a probability on the very edge may fall to either side
    edge = {
        path for path in expected.keys() ^ found.keys() if abs(path_probability(path, expected | found) - 0.02) < 1e-9
    }
    assert found.keys() - edge == expected.keys() - edge
    for path in found.keys() & expected.keys():
        assert found[path] == pytest.approx(expected[path])


def path_probability(path, scores):
    product = 1.0
    for n in range(1, len(path) + 1):
        product *= scores[path[:n]]
    return product


@given(CONTEXTS, st.integers(0, 20), st.booleans())
def test_drafts_stay_within_the_budget_and_scores_are_probabilities(context, budget, branching):
    config = AnpdConfig(branching=branching)
    for branch in propose(context, config, budget):
        assert 0 < len(branch.tokens) <= budget
        assert all(type(token) is int for token in branch.tokens)
        assert all(0.0 < score <= 1.0 for score in branch.scores)
        siblings = Counter()
        for parent, score in zip(branch.parents or range(-1, 99), branch.scores, strict=False):
            siblings[parent] += score
        assert max(siblings.values()) <= 1.0 + 1e-9


@given(CONTEXTS, st.integers(1, 30))
def test_a_smaller_budget_drafts_the_most_probable_part(context, budget):
    whole = propose(context)
    part = propose(context, budget=budget)
    assert bool(whole) == bool(part)
    for few, many in zip(part, whole, strict=True):
        assert list(few.tokens) == list(many.tokens)[:budget]
        assert list(few.parents) == list(many.parents)[:budget]


def test_counts_that_split_grow_two_branches_the_likelier_first():
    context = [7, 1, 2, 9, 7, 1, 3, 9, 7, 1, 3, 9, 7, 1]
    found = paths(propose(context)[0])
    assert found[(3,)] > found[(2,)] > 0
    assert (3, 9, 7, 1) in found
    assert propose(context)[0].tokens[0] == 3


def test_a_longer_match_outvotes_a_more_frequent_shorter_one():
    context = [5, 6, 7, 1, 0, 8, 1, 2, 9, 1, 2, 0, 5, 6, 7, 1]  # 0 followed 5 6 7 1 once, 2 followed 1 twice
    assert propose(context)[0].tokens[0] == 0
    assert propose(context, AnpdConfig.paper())[0].tokens[0] == 0
    assert propose(context, AnpdConfig(level_weight=1.0))[0].tokens[0] == 2


def test_a_loop_is_drafted_at_full_depth_although_its_last_round_is_closest():
    context = [1, 2, 3] * 3
    assert max(map(len, paths(propose(context)[0]))) == 16
    assert list(propose(context, AnpdConfig.paper())[0].tokens) == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("config", [AnpdConfig(), AnpdConfig.paper(), AnpdConfig(prompt_window=0)])
def test_decoding_gives_the_plain_text_in_fewer_steps(decode, config):
    target = HashTarget(48, n_successors=2)
    prompt = [1, 2, 3]
    tokens, n_steps = decode(Anpd(config), target, prompt, 200)
    assert tokens == target.generate(prompt, 200)
    assert n_steps < 110


def test_the_tree_needs_no_more_steps_than_the_chain(decode):
    target = HashTarget(48, n_successors=3)
    _, tree = decode(Anpd(), target, [1, 2, 3], 300)
    _, chain = decode(Anpd(AnpdConfig.paper()), target, [1, 2, 3], 300)
    assert tree < chain


def test_a_long_prompt_is_learnt_from_its_end_only():
    speculator = Anpd(AnpdConfig(prompt_window=4))
    request = request_of([1, 2, 3, 4, 1, 5, 6, 1])  # what followed the first 1 lies outside
    speculator.begin(request)
    assert len(speculator._states[0].places.text) == 4
    assert [path[0] for path in paths(speculator.propose(request, 64)[0]) if len(path) == 1] == [5]


def test_nothing_is_drafted_without_context_or_budget_or_repetition():
    for config in (AnpdConfig(), AnpdConfig.paper(), AnpdConfig(prompt_window=0)):
        assert propose([], config) == propose([1], config) == propose([1, 2, 3], config) == []
        assert propose([1, 1, 1], config, budget=0) == []


def test_state_is_per_request_and_dropped_at_the_end():
    speculator = Anpd()
    one, two = request_of([1, 2, 1]), RequestView.of(1, Request([1, 3, 1], SamplingParams()), 64)
    speculator.begin(one)
    speculator.begin(two)
    assert list(speculator.propose(one, 1)[0].tokens) == [2]
    assert list(speculator.propose(two, 1)[0].tokens) == [3]
    speculator.end(one)
    speculator.end(two)
    speculator.end(two)
    assert speculator._states == {}


@given(CONTEXTS, CONTEXTS)
def test_places_are_where_something_followed(first, second):
    places = NgramPlaces()
    places.learn(first)
    places.learn(second)
    text = [*first, *second]
    assert places.text == text
    for token in range(4):
        assert list(places.behind(token)) == [i + 1 for i, here in enumerate(text) if here == token]


@given(CONTEXTS, st.integers(1, 5), st.integers(1, 10))
def test_longest_matches_come_first_and_are_as_long_as_counted(context, order, limit):
    view = TokenBuffer(context).view
    places = NgramPlaces()
    places.learn(context)
    tail = context[-order:]
    if not tail:
        return
    counted = []
    for place in range(1, len(context)):
        match = 0
        while match < min(len(tail), place) and context[place - 1 - match] == tail[-1 - match]:
            match += 1
        if match:
            counted.append((place, match))
    expected = sorted(counted, key=lambda found: (found[1], found[0]), reverse=True)[:limit]
    assert longest_matches(places, view, tail, limit) == expected


@pytest.mark.parametrize("config", [AnpdConfig(), AnpdConfig(max_nodes=16)])
@pytest.mark.parametrize("n_context", [4096, 65_536])
def test_the_work_of_a_draft_does_not_grow_with_the_context(config, n_context):
    rng = random.Random(0)
    text = [rng.randrange(200) for _ in range(n_context)]  # every step drafts all the nodes there are
    speculator = Anpd(config)
    request = request_of(text, max_tokens=200)
    speculator.begin(request)
    speculator.propose(request, 64)
    for _ in range(20):
        request.context.extend([rng.randrange(200)])
        drafted, work = counted(partial(speculator.propose, request, 64))
        assert len(drafted[0].tokens) == config.max_nodes
        assert work.lines < 100 * config.max_nodes + 3000
        assert work.peak < 120_000  # a bool for each token of the longer context would be more
        speculator.observe(request, None)


@pytest.mark.parametrize(
    "bad",
    [
        {"ngram": 1},
        {"ngram": 33},
        {"draft_tokens": 0},
        {"max_nodes": 0},
        {"level_weight": 0.5},
        {"level_weight": 1e7},
        {"escape": -1.0},
        {"min_path": 1.0},
        {"near_path": -0.1},
        {"max_places": 0},
        {"near_places": -1},
        {"prompt_window": -1},
    ],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        AnpdConfig(**bad)
