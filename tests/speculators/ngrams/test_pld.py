"""Prompt lookup against searches of the whole text."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.keys import GOLDEN64, mix64
from speculators.ngrams.gram_search import MAX_SCORED_MATCH
from speculators.ngrams.pld import MATCH_SCORES, PldConfig, PromptLookup
from tests.speculators.drafts import first_draft, view

CONTEXTS = st.lists(st.integers(0, 3), min_size=0, max_size=40)
LOOPS = st.tuples(CONTEXTS, st.integers(1, 30)).map(lambda loop: loop[0] * loop[1])
TIES = st.sampled_from(["random", "first", "recent"])


def drafts(branches):
    return [list(branch.tokens) for branch in branches]


def propose(context, config=None, budget=64, seed=0):
    return drafts(first_draft(PromptLookup(config), view(context, seed=seed), budget))


def random_bits(seed, position):
    return mix64(seed * GOLDEN64 + position * 0xD1B54A32D192ED03 + 0xC4F46BE25A6A6404)


def searched(context, config, seed):
    """Return the drafts of the method's rule, by comparing all n-grams of the context."""
    found, prefixes = [], set()
    for n in range(config.ngram_max, config.ngram_min - 1, -1):
        starts = [end for end in range(n, len(context)) if context[end - n : end] == context[len(context) - n :]]
        full = [start for start in starts if start + config.draft_tokens <= len(context)]
        if config.tie_break == "recent":
            full.reverse()
        elif config.tie_break == "random" and full:
            turn = random_bits(seed, len(context)) % len(full)
            full = full[turn:] + full[:turn]
        for start in full + [start for start in starts if start + config.draft_tokens > len(context)]:
            draft = context[start : start + config.draft_tokens]
            if tuple(draft) not in prefixes and len(found) < config.max_branches:
                prefixes |= {tuple(draft[:length]) for length in range(1, len(draft) + 1)}
                found.append(draft)
    return found


def hugging_face(context, n_max, n_draft):
    """Return the draft of transformers' PromptLookupCandidateGenerator: the first match of the longest n-gram."""
    for n in range(min(n_max, len(context) - 1), 0, -1):
        for i in range(len(context) - n + 1):
            draft = context[i + n : i + n + n_draft]
            if context[i : i + n] == context[-n:] and draft:
                return draft
    return []


@given(CONTEXTS, st.integers(1, 4), st.integers(1, 6))
def test_the_first_of_equals_is_hugging_faces_choice_and_a_random_one_is_never_shorter(
    context, ngram_max, draft_tokens
):
    config = PldConfig(ngram_max=ngram_max, draft_tokens=draft_tokens, tie_break="first")
    expected = hugging_face(context, ngram_max, draft_tokens)
    assert propose(context, config) == ([expected] if expected else [])
    assert sum(map(len, propose(context, replace(config, tie_break="random")))) == len(expected)


@given((CONTEXTS | LOOPS).filter(bool), st.integers(1, 40), st.integers(1, 4), TIES, st.integers(0, 20))
def test_a_growing_text_gets_the_drafts_of_searching_all_of_it_again(text, step, max_branches, tie_break, budget):
    config = PldConfig(max_branches=max_branches, tie_break=tie_break)
    speculator, request = PromptLookup(config), view(text[:1], seed=3)
    speculator.begin(request)
    for end in range(1, len(text), step):
        request.context.extend(text[len(request.context) : end])
        branches = speculator.propose(request, 64)
        assert drafts(branches) == propose(text[:end], config, seed=3) == searched(text[:end], config, seed=3)
        assert all(type(token) is int for branch in branches for token in branch.tokens)
        few = drafts(speculator.propose(request, budget))
        assert len({tuple(draft[:n]) for draft in few for n in range(1, len(draft) + 1)}) <= budget


@pytest.mark.parametrize(
    ("context", "config", "drafted"),
    [
        ([7, 1, 2, 7, 3, 4, 7, 5, 6, 7], {"max_branches": 9, "draft_tokens": 2}, [[1, 2], [3, 4], [5, 6]]),
        ([1, 2, 3] * 8, {}, [[1, 2, 3, 1, 2, 3, 1, 2, 3, 1]]),  # a loop, although its last round is closest
        ([7, 1, 1, 7, 2, 2, 7, 3, 3, 7], {"tie_break": "recent", "draft_tokens": 2}, [[3, 3]]),
        ([1, 2, 3, 9, 3], {"ngram_min": 2}, []),
        ([2, 3, 9, 2, 3], {"ngram_min": 2}, [[9, 2, 3]]),
        ([1], {}, []),
    ],
)
def test_settings_choose_among_matches(context, config, drafted):
    assert sorted(propose(context, PldConfig(**config))) == drafted
    assert propose(context, PldConfig(**config), budget=0) == []


def test_ties_depend_on_the_seed():
    found = {propose([7, 1, 7, 2, 7, 3, 7, 4, 7], PldConfig(draft_tokens=1), seed=seed)[0][0] for seed in range(60)}
    assert found == {1, 2, 3, 4}


@given(CONTEXTS, st.integers(0, 40))
def test_an_earlier_place_of_a_text_has_the_draft_that_it_had_before(context, n_first):
    """A text is looked up after all of it, then after an earlier place, then after all of it again."""
    lookup, whole = PromptLookup(), view(context)
    first = replace(whole, context=whole.context.before(min(n_first, len(context))))
    lookup.begin(whole)
    for one in (whole, first, whole):
        assert drafts(lookup.propose(one, 64)) == searched(one.context.view.tolist(), PldConfig(), 0)


SEEDS = st.sampled_from([0, 3, 2**63, 2**64 - 1])
CONFIGS = st.builds(
    PldConfig,
    ngram_max=st.integers(2, 4),
    ngram_min=st.integers(1, 2),
    draft_tokens=st.integers(1, 12),
    tie_break=TIES,
    max_branches=st.sampled_from([1, 1, 2]),
)


@given(st.lists(st.tuples(CONTEXTS | LOOPS, SEEDS), min_size=1, max_size=5), CONFIGS, st.data())
def test_drafts_of_a_batch_are_those_of_searching_every_text(requests, config, data):
    """Texts grow by up to 200 tokens between drafts, beyond the room of their buffers and indexes."""
    lookup, views = PromptLookup(config), []
    for request_id, (text, seed) in enumerate(requests):
        views.append(view(text[:3] or [1], request_id, seed=seed, max_tokens=1))
        lookup.begin(views[-1])
    for _ in range(3):
        for one, (text, _) in zip(views, requests, strict=True):
            one.context.extend((text * 9 + [2])[: data.draw(st.sampled_from([0, 1, 2, 200]))])
        asked = [one for one in views if data.draw(st.booleans())]
        budgets = [data.draw(st.sampled_from([0, 1, 5, 64])) for _ in asked]
        found = lookup.propose_batch(asked, budgets)
        for one, branches, budget in zip(asked, found, budgets, strict=True):
            text = one.context.view.tolist()
            expected = searched(text, config, one.request.params.seed) if len(text) > 1 and budget else []
            assert drafts(branches)[:1] == [draft[:budget] for draft in expected[:1]]
            assert config.max_branches > 1 or len(branches) <= 1
            assert all(len(branch.scores) == len(branch.tokens) for branch in branches)


@given(st.lists(st.tuples(CONTEXTS | LOOPS, SEEDS), min_size=1, max_size=5), CONFIGS, st.data())
def test_looking_back_compares_the_draft_of_an_earlier_place_with_what_followed(requests, config, data):
    lookup, views = PromptLookup(config), []
    for request_id, (text, seed) in enumerate(requests):
        views.append(view(text[:2] or [1], request_id, seed=seed, max_tokens=1))
        lookup.begin(views[-1])
    for _ in range(2):
        for one, (text, _) in zip(views, requests, strict=True):
            one.context.extend(text)
        distances = [data.draw(st.integers(0, 12)) for _ in views]
        found = lookup.look_back(views, distances).tolist()
        for one, distance, counts in zip(views, distances, found, strict=True):
            text = one.context.view.tolist()
            end = len(text) - distance
            expected = searched(text[:end], config, one.request.params.seed) if end > 1 else []
            draft = expected[0][:distance] if expected else []
            pairs = zip(draft, text[end:], strict=False)
            assert counts == [len(draft), sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))]


def test_a_request_that_ends_leaves_nothing_to_the_next_one():
    lookup = PromptLookup()
    for request_id in range(40):
        first, second = view([1, 2, 3, 1, 2], request_id), view([4, 5, 1, 2], 100 + request_id)
        lookup.begin(first)
        lookup.begin(second)
        assert drafts(lookup.propose(first, 9)) == [[3, 1, 2]]
        assert lookup.propose(second, 9) == []
        lookup.end(first)
        lookup.begin(replace(first, context=view([6, 7, 1, 2]).context))
        lookup.end(second)
    assert all(lookup.look_back([view([1], request_id)], [1]).tolist() == [[0, 0]] for request_id in range(40))
    with pytest.raises(KeyError):
        lookup.propose(view([1, 2, 1], 100), 9)


def test_a_long_text_is_searched_in_few_hops():
    """Any of 20000 equal matches is the one that counts."""
    text = [5, 6] * 20000 + [5]
    config = PldConfig(draft_tokens=3)
    for seed in range(5):
        assert propose(text, config, seed=seed) == [[6, 5, 6]]
    starts = [7, 8, 9] * 3000
    for seed in range(20):
        marked = [token for i, start in enumerate(starts) for token in (1, 2, 3, start + 3 * i)] + [1, 2, 3]
        assert propose(marked, PldConfig(draft_tokens=1), seed=seed) == searched_by_rank(marked, seed)


def searched_by_rank(text, seed):
    """Return the token after one of the places of ``1 2 3``."""
    places = [i for i in range(3, len(text)) if text[i - 3 : i] == [1, 2, 3]]
    return [[text[places[random_bits(seed, len(text)) % len(places)]]]]


@given(CONTEXTS, st.integers(1, 3), TIES)
def test_a_score_is_that_of_the_number_of_tokens_that_match(context, max_branches, tie_break):
    config = PldConfig(max_branches=max_branches, tie_break=tie_break, draft_tokens=3)
    for branch in first_draft(PromptLookup(config), view(context)):
        lengths = {
            next((n for n in range(MAX_SCORED_MATCH, 0, -1) if n <= end and context[end - n : end] == context[-n:]), 0)
            for end in range(1, len(context))
            if context[end : end + len(branch.tokens)] == list(branch.tokens)
        }
        assert branch.scores[0] in {MATCH_SCORES[length] for length in lengths - {0}}
        assert all(later >= earlier for earlier, later in itertools.pairwise(branch.scores))
