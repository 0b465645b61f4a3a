import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.protocol import RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from speculators.ngrams.occurrences import LONGEST
from speculators.ngrams.pld import CLAIMS, PldConfig, PromptLookup, _mix
from speculators.testing import HashTarget

CONTEXTS = st.lists(st.integers(0, 3), min_size=0, max_size=40)


def propose(context, config=None, budget=64, seed=0):
    request = RequestView.of(0, Request(context, SamplingParams(seed=seed)), 64)
    return [list(branch.tokens) for branch in PromptLookup(config).propose(request, budget)]


def longest_ngram_starts(context, config):
    """Oracle: where continuations of the longest repeated suffix begin."""
    for n in range(config.ngram_max, config.ngram_min - 1, -1):
        starts = [end for end in range(n, len(context)) if context[end - n : end] == context[len(context) - n :]]
        if starts:
            return starts
    return []


def searched(context, config, seed):
    """Oracle: the method's rule on every n-gram of the context, compared one by one."""
    drafts, prefixes = [], set()
    for n in range(config.ngram_max, config.ngram_min - 1, -1):
        starts = [end for end in range(n, len(context)) if context[end - n : end] == context[len(context) - n :]]
        full = [start for start in starts if start + config.draft_tokens <= len(context)]
        if config.tie_break == "recent":
            full.reverse()
        elif config.tie_break == "random" and full:
            turn = _mix(seed, len(context)) % len(full)
            full = full[turn:] + full[:turn]
        for start in full + [start for start in starts if start + config.draft_tokens > len(context)]:
            draft = context[start : start + config.draft_tokens]
            if tuple(draft) not in prefixes and len(drafts) < config.max_branches:
                prefixes |= {tuple(draft[:length]) for length in range(1, len(draft) + 1)}
                drafts.append(draft)
    return drafts


def hugging_face(context, n_max, n_draft):
    """Oracle: PromptLookupCandidateGenerator, the first match of the longest n-gram."""
    for n in range(min(n_max, len(context) - 1), 0, -1):
        for i in range(len(context) - n + 1):
            draft = context[i + n : i + n + n_draft]
            if context[i : i + n] == context[-n:] and draft:
                return draft
    return None


@given(CONTEXTS, st.integers(1, 4), st.integers(1, 6), st.integers(0, 5))
def test_the_draft_is_one_of_the_longest_continuations_of_the_longest_suffix(context, ngram_max, draft_tokens, seed):
    config = PldConfig(ngram_max=ngram_max, draft_tokens=draft_tokens)
    continuations = [context[s : s + draft_tokens] for s in longest_ngram_starts(context, config)]
    longest = max(map(len, continuations), default=0)
    proposed = propose(context, config, seed=seed)
    assert len(proposed) == (1 if continuations else 0)
    for draft in proposed:
        assert draft in [continuation for continuation in continuations if len(continuation) == longest]


@given(CONTEXTS, st.integers(1, 4), st.integers(1, 6))
def test_the_first_of_equals_is_hugging_faces_choice(context, ngram_max, draft_tokens):
    config = PldConfig(ngram_max=ngram_max, draft_tokens=draft_tokens, tie_break="first")
    expected = hugging_face(context, ngram_max, draft_tokens)
    assert propose(context, config) == ([expected] if expected else [])


@given(
    st.one_of(CONTEXTS, st.tuples(CONTEXTS, st.integers(1, 30)).map(lambda loop: loop[0] * loop[1])).filter(bool),
    st.integers(1, 40),
    st.integers(1, 4),
    st.sampled_from(["random", "first", "recent"]),
)
def test_a_text_that_grows_gets_the_drafts_of_searching_all_of_it_again(text, step, max_branches, tie_break):
    config = PldConfig(max_branches=max_branches, tie_break=tie_break)
    speculator = PromptLookup(config)
    request = RequestView.of(0, Request(text[:1], SamplingParams(seed=3)), 64)
    speculator.begin(request)
    for end in range(1, len(text), step):
        request.context.extend(text[len(request.context) : end])
        drafts = [list(branch.tokens) for branch in speculator.propose(request, 64)]
        assert drafts == propose(text[: max(end, 1)], config, seed=3) == searched(text[: max(end, 1)], config, seed=3)
    speculator.end(request)
    assert speculator._known == {}


@given(CONTEXTS, st.integers(1, 6))
def test_the_random_choice_is_never_shorter_than_hugging_faces(context, draft_tokens):
    expected = hugging_face(context, 3, draft_tokens)
    proposed = propose(context, PldConfig(draft_tokens=draft_tokens))
    assert len(expected or []) == sum(map(len, proposed))


@given(CONTEXTS, st.integers(2, 6), st.integers(0, 20))
def test_several_branches_are_distinct_and_stay_within_the_budget(context, max_branches, budget):
    proposed = propose(context, PldConfig(max_branches=max_branches), budget)
    prefixes = {tuple(draft[:n]) for draft in proposed for n in range(1, len(draft) + 1)}
    assert len(proposed) <= max_branches
    assert len(prefixes) <= budget
    assert len({tuple(draft) for draft in proposed}) == len(proposed)


def test_more_branches_than_matches_yield_every_distinct_continuation():
    context = [7, 1, 2, 7, 3, 4, 7, 5, 6, 7]
    proposed = propose(context, PldConfig(max_branches=9, draft_tokens=2))
    assert sorted(proposed) == [[1, 2], [3, 4], [5, 6]]


def test_a_loop_is_drafted_at_full_length_although_its_last_round_is_closest():
    context = [1, 2, 3] * 8
    assert propose(context)[0] == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]


def test_the_most_recent_of_equals_can_be_asked_for():
    context = [7, 1, 1, 7, 2, 2, 7, 3, 3, 7]
    assert propose(context, PldConfig(tie_break="recent", draft_tokens=2)) == [[3, 3]]


def test_ties_depend_on_seed_and_position_only():
    context = [7, 1, 7, 2, 7, 3, 7, 4, 7]
    config = PldConfig(draft_tokens=1)
    assert propose(context, config, seed=5) == propose(context, config, seed=5)
    drawn = {propose(context, config, seed=seed)[0][0] for seed in range(60)}
    assert drawn == {1, 2, 3, 4}


def test_the_minimum_ngram_keeps_weak_matches_out():
    assert propose([1, 2, 3, 9, 3], PldConfig(ngram_min=2)) == []
    assert propose([2, 3, 9, 2, 3], PldConfig(ngram_min=2)) == [[9, 2, 3]]


def test_no_context_and_no_budget_mean_no_draft():
    assert propose([]) == propose([1]) == propose([1, 1, 1], budget=0) == []


def test_drafts_are_python_ints():
    assert all(type(token) is int for token in propose([1, 2, 1])[0])


@pytest.mark.parametrize(
    "bad",
    [{"ngram_min": 0}, {"ngram_min": 4}, {"draft_tokens": 0}, {"max_branches": 0}, {"tie_break": "best"}],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError):
        PldConfig(**bad)


@pytest.mark.parametrize("max_branches", [1, 4])
def test_decoding_gives_the_plain_text_in_fewer_steps(decode, max_branches):
    target = HashTarget(48, n_successors=2)
    prompt = [1, 2, 3]
    tokens, n_steps = decode(PromptLookup(PldConfig(max_branches=max_branches)), target, prompt, 200)
    assert tokens == target.generate(prompt, 200)
    assert n_steps < 100


def quickest_draft(n_context, n_tokens):
    """Seconds, behind a context of so many tokens of so many kinds."""
    context = np.random.default_rng(0).integers(0, n_tokens, n_context).tolist()
    request = RequestView.of(0, Request(context, SamplingParams()), n_tokens)
    speculator = PromptLookup()
    speculator.begin(request)
    seconds = []
    for _ in range(200):
        start = time.perf_counter()
        speculator.propose(request, 64)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def test_a_draft_takes_no_longer_behind_a_longer_context():
    """It looks at the occurrences of one token, of which both contexts have 80."""
    assert quickest_draft(131_072, 1600) < 4 * quickest_draft(4096, 50)


@given(CONTEXTS, st.integers(0, 40), st.integers(1, 9))
def test_what_is_repeated_is_counted_also_behind_the_beginning_of_a_longer_text(context, n_first, longest):
    """A text is looked up behind all of it, then behind an earlier place, then behind all of it again."""
    lookup = PromptLookup()
    whole = RequestView.of(0, Request(context, SamplingParams()), 64)
    first = replace(whole, context=whole.context.before(min(n_first, len(context))))
    lookup.begin(whole)
    for view in (whole, first, whole):
        text = view.context.view.tolist()
        found = [n for n in range(1, longest + 1) if is_repeated(text, n)]
        assert lookup.repeated(view, longest) == max(found, default=0)
        drafts = [list(branch.tokens) for branch in lookup.propose(view, 64)]
        assert drafts == searched(text, PldConfig(), view.request.params.seed)


def is_repeated(text, n):
    """Whether the last ``n`` tokens stand somewhere before."""
    return any(text[end - n : end] == text[len(text) - n :] for end in range(n, len(text)))


@given(CONTEXTS, st.integers(1, 3), st.sampled_from(["random", "first", "recent"]))
def test_a_claim_is_that_of_the_tokens_that_match(context, max_branches, tie_break):
    config = PldConfig(max_branches=max_branches, tie_break=tie_break, draft_tokens=3)
    request = RequestView.of(0, Request(context, SamplingParams()), 64)
    for branch in PromptLookup(config).propose(request, 64):
        claim = branch.scores[0]
        lengths = {
            next((n for n in range(LONGEST, 0, -1) if n <= end and context[end - n : end] == context[-n:]), 0)
            for end in range(1, len(context))
            if context[end : end + len(branch.tokens)] == list(branch.tokens)
        }
        assert claim in {CLAIMS[length] for length in lengths - {0}}
        assert all(later >= earlier for earlier, later in itertools.pairwise(branch.scores))
