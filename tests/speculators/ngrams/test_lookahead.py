"""Lookahead against the original's two-dimensional window, kept level by level with its explicit attention mask."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError
from engine.protocol import Branch, Outcome
from engine.tree import EMPTY_TREE
from speculators.ngrams.lookahead import Lookahead, LookaheadConfig
from speculators.ngrams.lookahead_window import LookaheadWindow
from speculators.node_counter import NodeCounter
from speculators.testing import HashTarget
from tests.support.original_lookahead import LongMemory, Original

PAPER = LookaheadConfig.paper()
ROOMY = 1000  # nodes: everything fits
CONFIGS = {
    "published": PAPER,
    "published + prompt": replace(PAPER, learn_from_prompt=True),
    "published + output": replace(PAPER, learn_from_output=True),
    "default": LookaheadConfig(),
    "small": replace(PAPER, level=3, window=3, guesses=2, seed=5),
    "deep": LookaheadConfig(level=7, window=4, guesses=3),
    "one column": replace(PAPER, window=1),
    "end of the prompt": LookaheadConfig(prompt_window=6),
}


def split(branches):
    guesses = [list(branch.tokens) for branch in branches if not branch.probe]
    return guesses, [tuple(branch.tokens) for branch in branches if branch.probe]


def check(decode_steps, new_request, config, prompt, n_successors, seed, n_tokens=60, budget=ROOMY):
    target = LongMemory(60, n_successors)
    request = new_request(prompt, seed=seed, vocab_size=60)
    original = Original(config, prompt, seed)
    n_guesses = 0
    for step in decode_steps(Lookahead(config), target, request, n_tokens, budget):
        x = request.context.view.tolist()
        if len(x) == len(prompt) + 1 and config.learn_from_output:
            original.learn(x)  # the prefill's token
        guesses, columns = split(step.branches)
        assert columns == original.paths()
        assert guesses == original.guesses(x)
        n_guesses += len(guesses)
        original.observe(x, target, step.outcome.tokens)
    assert request.context.view[len(prompt) :].tolist()[:n_tokens] == target.generate(prompt, n_tokens)
    return n_guesses


@pytest.mark.parametrize("name", CONFIGS)
def test_every_step_equals_the_original(decode_steps, new_request, name):
    assert check(decode_steps, new_request, CONFIGS[name], [1, 2, 3, 1, 2, 5, 6, 9], 3, seed=3, n_tokens=120) > 0


@given(
    prompt=st.lists(st.integers(0, 59), min_size=1, max_size=20),
    n_successors=st.integers(1, 6),
    seed=st.integers(0, 2**64 - 1),
    name=st.sampled_from(sorted(CONFIGS)),
)
def test_any_prompt_equals_the_original(decode_steps, new_request, prompt, n_successors, seed, name):
    check(decode_steps, new_request, CONFIGS[name], prompt, n_successors, seed, n_tokens=30)


def test_the_published_setting_fits_into_64_nodes(decode_steps, new_request):
    check(decode_steps, new_request, PAPER, [1, 2, 3, 1, 2, 5, 6, 9], 3, seed=3, n_tokens=200, budget=64)
    check(decode_steps, new_request, LookaheadConfig(), [1, 2, 3, 1, 2, 5], 5, seed=3, n_tokens=200, budget=64)


@pytest.mark.parametrize("n_filled", [0, 1, 2, 3])
def test_the_tree_has_the_originals_attention_mask_and_positions(n_filled):
    """All tokens different, so that no two nodes merge: the tree is the original's rows one for one."""
    config = PAPER
    fresh = iter(range(100, 1000))
    first = [next(fresh) for _ in range(config.window + config.level - 3)]
    window = LookaheadWindow(first, config.level)
    original = Original(config, [0], 0)
    original.levels[0] = list(first)

    class Fresh:
        def next_token(self, context):
            return answers[tuple(context[1:])]

    for _ in range(n_filled):
        answers = {}
        for row in range(1, len(original.inputs()) + 1):
            shown = np.flatnonzero(original.mask()[row])[1:]
            ordered = sorted((original.inputs()[m - 1][3], original.inputs()[m - 1][0]) for m in shown)
            answers.setdefault(tuple(token for _, token in ordered), next(fresh))
        tree = compose([Branch(path, "x", None, True) for path in window.choose(0, NodeCounter(), ROOMY)], ROOMY)
        tops = {node: [answers[tuple(tree.tokens[i] for i in tree.path(node))]] for node in tree.probe_ends}
        assert window.advance(Outcome([1], tree, (), tops)) == []
        original.observe([0], Fresh(), [1])
    tree = compose([Branch(path, "x", None, True) for path in window.choose(0, NodeCounter(), ROOMY)], ROOMY)
    rows = original.inputs()
    if 0 < n_filled < config.level - 2:  # while filling, column 0 is left out: its answers are thrown away
        kept = [n for n, row in enumerate(rows) if row[1] == 0 or row[2] > 0]
    else:
        kept = list(range(len(rows)))
    assert sorted(tree.tokens) == sorted(rows[n][0] for n in kept)
    node_of = {token: node for node, token in enumerate(tree.tokens)}
    seen = tree.ancestor_mask()
    for n in kept:
        node = node_of[rows[n][0]]
        assert tree.depths[node] == rows[n][3]
        expected = {rows[m - 1][0] for m in np.flatnonzero(original.mask()[n + 1])[1:]}
        assert {tree.tokens[m - 1] for m in np.flatnonzero(seen[node + 1])[1:]} == expected
    if window.is_full:
        assert len(tree) == config.window * (config.level - 1) - 1
        assert len(tree.probe_ends) == config.window


def test_filling_takes_n_minus_2_steps_without_guesses(decode_steps, new_request):
    target = LongMemory(60, 2)
    prompt = [1, 2, 3, 4] * 5
    config = replace(PAPER, learn_from_prompt=True)
    drafted = [split(step.branches) for step in decode_steps(Lookahead(config), target, new_request(prompt), 30)]
    assert [len(guesses) for guesses, _ in drafted[:3]] == [0, 0, 0]
    assert [len(columns) for _, columns in drafted[:5]] == [9, 8, 7, 7, 7]


def test_guesses_do_not_wait_by_default(new_request):
    request = new_request([1, 2, 3, 4, 5, 1])
    speculator = Lookahead()
    speculator.begin(request)
    guesses, _ = split(speculator.propose(request, 64))
    assert guesses == [[2, 3, 4, 5]]


@given(
    prompt=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    budgets=st.lists(st.integers(0, 70), min_size=1, max_size=8),
    name=st.sampled_from(sorted(CONFIGS)),
)
def test_any_budget_is_kept_and_the_text_stays_right(new_request, prompt, budgets, name):
    target = LongMemory(40, 2)
    request = new_request(prompt, vocab_size=40)
    speculator = Lookahead(CONFIGS[name])
    speculator.begin(request)
    outcome = Outcome([target.next_token(prompt)], EMPTY_TREE)
    for n in range(30):
        request.context.extend(outcome.tokens)
        speculator.observe(request, outcome)
        budget = budgets[n % len(budgets)]
        branches = speculator.propose(request, budget)
        tree = compose(branches, ROOMY)
        assert len(tree) <= budget
        assert len(tree.probe_ends) == len({tuple(branch.tokens) for branch in branches if branch.probe})
        for branch in branches:
            assert all(type(token) is int for token in branch.tokens)
            assert branch.probe or all(0.0 < score <= 1.0 for score in branch.scores)
        outcome = target.score(request.context.view.tolist(), tree)
    text = request.context.view[len(prompt) :].tolist()
    assert text == target.generate(prompt, len(text))


def test_columns_that_do_not_fit_wait_and_the_window_is_a_smaller_one(decode_steps, new_request):
    target = LongMemory(60, 3)
    config = replace(PAPER, guesses=1)
    narrow = replace(config, window=3)  # 11 nodes when full
    budget = 15  # three columns of the window beside one guess of four tokens
    wide = decode_steps(Lookahead(config), target, new_request([7] * 9, vocab_size=60), 60, budget)
    small = decode_steps(Lookahead(narrow), target, new_request([7] * 9, vocab_size=60), 60, ROOMY)
    n_full = 0
    for one, other in zip(wide, small, strict=False):
        columns, expected = split(one.branches)[1], split(other.branches)[1]
        if len(expected) == 3:
            n_full += 1
            assert columns[: len(expected)] == expected[: len(columns)]
    assert n_full > 10


def answer(window, answers):
    """Probe the whole window as the next step does; ``answers``: column -> token, the others stay unanswered."""
    paths = window.choose(0, NodeCounter(), ROOMY)
    first = 0 if window.is_full else 1
    tree = compose([Branch(path, "x", None, True) for path in paths], ROOMY)
    tops = {tree.find(paths[column - first]): [token] for column, token in answers.items()}
    return window.advance(Outcome([1], tree, (), tops))


def test_columns_without_an_answer_wait_as_they_are():
    window = LookaheadWindow([10, 20, 30], 3)  # W = 3
    assert answer(window, {2: 21, 3: 31}) == []
    assert not window.is_full  # without column 1 nothing can take the place of column 0
    assert window.paths == [(10,), (10, 20, 21), (10, 20, 30, 31)]
    window = LookaheadWindow([10, 20, 30], 3)
    assert answer(window, {1: 11, 3: 31}) == []
    assert window.is_full
    assert window.paths == [(11,), (20,), (20, 30, 31)]
    assert answer(window, {1: 21, 2: 32}) == [(30, 31, 32)]  # column 1 is as long as the others only now
    assert window.paths == [(11,), (20, 21), (20, 31, 32)]
    assert answer(window, {0: 12, 1: 22}) == [(0, 11, 12), (20, 21, 22)]
    assert window.paths == [(12,), (21, 22), (21, 31, 32)]


def test_the_window_keeps_its_share_of_a_small_budget(new_request):
    prompt = [token for i in range(9) for token in (1, 10 + 4 * i, 11 + 4 * i, 12 + 4 * i, 13 + 4 * i)] + [1]
    request = new_request(prompt, vocab_size=500)
    speculator = Lookahead()
    speculator.begin(request)
    guesses, columns = split(speculator.propose(request, 16))
    assert sum(map(len, guesses)) == 8
    assert len(columns) == 8  # the first row: one node per column
    guesses, columns = split(speculator.propose(request, 64))
    assert sum(map(len, guesses)) == 28
    assert len(columns) == 9


def test_scores_favour_recent_guesses_and_siblings_share(new_request):
    request = new_request([1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 1, 8, 9, 8, 9, 1])
    speculator = Lookahead()
    speculator.begin(request)
    branches = [branch for branch in speculator.propose(request, 64) if not branch.probe]
    assert [list(branch.tokens) for branch in branches] == [[8, 9, 8, 9], [2, 3, 6, 7], [2, 3, 4, 5]]
    newest, middle, oldest = (branch.scores for branch in branches)
    assert newest[0] > middle[0] == oldest[0]
    assert newest[0] + middle[0] == pytest.approx(3 / 4)  # three sequences: 3 / (3 + 1)
    assert middle[:2] == oldest[:2]
    assert middle[2] > oldest[2]
    assert middle[2] + oldest[2] == pytest.approx(2 / 2.25)
    assert newest[1] == middle[3] == pytest.approx(0.8)


def test_it_decodes_in_fewer_steps_than_tokens(decode):
    target = HashTarget(64, n_successors=2)
    for config in (PAPER, LookaheadConfig()):
        tokens, n_steps = decode(Lookahead(config), target, [1, 2, 3, 4], 200)
        assert tokens == target.generate([1, 2, 3, 4], 200)
        assert n_steps < 150


def test_the_window_depends_on_both_seeds(new_request):
    def columns(config_seed, request_seed):
        request = new_request(list(range(60)), seed=request_seed)
        speculator = Lookahead(replace(PAPER, seed=config_seed))
        speculator.begin(request)
        return split(speculator.propose(request, 64))[1]

    assert columns(0, 1) == columns(0, 1)
    assert columns(0, 1) != columns(0, 2)
    assert columns(0, 1) != columns(1, 1)


def test_a_step_without_answers_changes_nothing(new_request):
    request = new_request([1, 2, 3, 1, 2, 3, 1])
    speculator = Lookahead()
    speculator.begin(request)
    before = split(speculator.propose(request, 64))
    speculator.observe(request, Outcome((), EMPTY_TREE))
    assert split(speculator.propose(request, 64)) == before


def test_memory_is_bounded_and_dropped_at_the_end(decode_steps, new_request):
    speculator = Lookahead(LookaheadConfig(max_keys=16, guesses=2))
    target = LongMemory(1000, 9)
    for _ in decode_steps(speculator, target, new_request(list(range(300)), vocab_size=1000), 200):
        state = speculator._states[0]
        assert len(state.pool) <= 17
        assert len(state.window.paths) <= 9
    assert speculator._states == {}
    speculator.end(new_request([1]))


@pytest.mark.parametrize(
    "bad",
    [{"level": 2}, {"window": 0}, {"guesses": 0}, {"window_share": 1.5}, {"prompt_window": -1}, {"max_keys": 1}],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        LookaheadConfig(**bad)
