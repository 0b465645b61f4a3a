"""What ``prediction`` drafts: tokens per step, bounds of drafts, and what a useless prediction costs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError
from engine.protocol import Branch, Needs, RequestView, Speculator
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import ROOT
from engine.verify.rules import walk_text
from speculators.prediction.alignment import LOST
from speculators.prediction.config import PredictionConfig
from speculators.prediction.replacements import LONGEST, MOST, MOST_HERE, Replacements
from speculators.prediction.speculator import Prediction
from speculators.registry import create

VOCAB = 500
PROMPT = [3, 1, 4]


def text_of(n: int, seed: int = 0, vocabulary: int = 80) -> list[int]:
    """Tokens as files have them: some very common, many rare, lines that come back."""
    rng = random.Random(seed)
    lines = [
        [rng.randrange(int(vocabulary * rng.random() ** 2) + 1) for _ in range(rng.randint(4, 14))] for _ in range(40)
    ]
    text: list[int] = []
    while len(text) < n:
        text += rng.choice(lines) if rng.random() < 0.3 else [rng.randrange(vocabulary) for _ in range(9)]
    return text[:n]


def scattered(text: Sequence[int], share: float, seed: int = 0) -> list[int]:
    """So much of the tokens replaced, left out or preceded by another."""
    rng, changed = random.Random(seed), list(text)
    for place in sorted(rng.sample(range(len(text)), int(share * len(text))), reverse=True):
        kind = rng.randrange(3)
        changed[place : place + (kind > 0)] = [rng.randrange(80)] if kind < 2 else []
    return changed


def view_of(prediction: list[int], n: int = 1000, vocab_size: int = VOCAB) -> RequestView:
    return RequestView.of(0, Request(PROMPT, SamplingParams(max_tokens=n), prediction=prediction), vocab_size)


class Steps:
    """An answer that is written step by step while a speculator drafts."""

    def __init__(self, speculator: Speculator, prediction: list[int], answer: Sequence[int], budget: int = 64) -> None:
        view = view_of(prediction, len(answer))
        speculator.begin(view)
        view.context.extend(answer[:1])
        self.committed: list[int] = []  # tokens of every step
        self.nodes: list[int] = []
        done = 1
        while done < len(answer):
            tree = compose(speculator.propose(view, budget), budget)
            tokens, _ = walk_text(tree, answer[done:])
            view.context.extend(tokens)
            done += len(tokens)
            self.committed.append(len(tokens))
            self.nodes.append(len(tree))
        assert view.context.view[len(PROMPT) :].tolist() == list(answer)
        speculator.end(view)

    @property
    def tokens_per_step(self) -> float:
        return sum(self.committed) / len(self.committed)


class LongestSuffix:
    """Oracle: what stands behind the longest suffix of the answer in the prediction, of equals nearest to where the
    last one was; a chain."""

    name, needs = "longest-suffix", Needs()

    def begin(self, view: RequestView) -> None:
        self.expected = 0

    def propose(self, view: RequestView, budget: int):

        predicted, written = view.request.prediction, view.context.view[view.n_prompt :].tolist()
        found = []
        for position in range(1, len(predicted)):
            n = 0
            while n < min(position, len(written), 16) and predicted[position - 1 - n] == written[-1 - n]:
                n += 1
            found.append((n, -abs(position - self.expected), position))
        best = max(found, default=(0, 0, 0))
        if best[0] == 0:
            return []
        chain = predicted[best[2] : best[2] + budget]
        self.expected = best[2] + 1
        return [Branch(chain, self.name)]

    def observe(self, view, outcome) -> None: ...

    def end(self, view) -> None: ...


def test_a_right_prediction_is_taken_whole_steps_at_a_time() -> None:
    text = text_of(700)
    steps = Steps(Prediction(), text, text)
    assert steps.committed[:-1] == [65] * (len(steps.committed) - 1)


def test_a_prediction_that_ends_early_and_one_that_ends_late_help_as_far_as_they_go() -> None:
    text = text_of(300)
    early, late = Steps(Prediction(), text[:150], text), Steps(Prediction(), text, text[:150])
    assert early.committed[:2] == [65, 65]
    assert early.tokens_per_step < 2.5
    assert late.committed == [65, 65, 19]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
def test_it_takes_fewer_steps_than_the_longest_suffix_alone(share: float) -> None:
    n_ours = n_oracle = 0
    for seed in range(4):
        answer = text_of(500, seed)
        prediction = scattered(answer, share, seed)
        n_ours += len(Steps(Prediction(), prediction, answer).committed)
        n_oracle += len(Steps(LongestSuffix(), prediction, answer).committed)
    assert n_ours < n_oracle


def test_scattered_edits_cost_little_more_than_a_step_each() -> None:
    runs = [Steps(Prediction(), scattered(text_of(600, seed), 0.1, seed), text_of(600, seed)) for seed in range(4)]
    assert sum(len(run.committed) for run in runs) < 1.6 * 4 * 60


def test_a_renamed_symbol_costs_a_step_once() -> None:
    rng = random.Random(0)
    rest = [rng.choices(range(100, 400), k=12) for _ in range(30)]
    prediction = [token for line in rest for token in (*line[:6], 50, 51, *line[6:])]
    answer = [token for line in rest for token in (*line[:6], 60, 61, 62, *line[6:])]
    steps = Steps(Prediction(), prediction, answer)
    assert len(steps.committed) < 15 < len(rest)


@pytest.mark.parametrize("vocabulary", [80, 12])
def test_a_useless_prediction_drafts_next_to_nothing_and_then_rests(vocabulary: int) -> None:
    answer, other = text_of(400, 1, vocabulary), [token + 200 for token in text_of(400, 2, vocabulary)]
    steps = Steps(Prediction(), other, answer)
    assert sum(steps.nodes) < 40
    assert not any(steps.nodes[LOST:])


def test_another_file_as_prediction_costs_few_nodes() -> None:
    steps = Steps(Prediction(), text_of(800, 2), text_of(800, 1))
    assert sum(steps.nodes) < 3 * len(steps.nodes)


def test_a_request_without_a_prediction_costs_no_state() -> None:
    speculator = Prediction()
    view = view_of([])
    speculator.begin(view)
    view.context.extend([1, 2, 3])
    assert speculator.propose(view, 64) == []
    assert speculator.repeated(view, 3) == 0
    assert speculator._alignments == {}


def test_a_request_that_another_router_began_goes_on_where_it_was() -> None:
    text = text_of(300)
    request = Request(PROMPT, SamplingParams(max_tokens=300), emitted=text[:120], prediction=text)
    view = RequestView.of(0, request, VOCAB)
    speculator = Prediction()
    speculator.begin(view)
    [branch] = speculator.propose(view, 64)
    assert list(branch.tokens) == text[120:184]
    assert speculator.repeated(view, 3) == 3


def test_an_earlier_place_may_be_asked_about_and_changes_nothing() -> None:
    text = text_of(200)
    speculator, view = Prediction(), view_of(text)
    speculator.begin(view)
    view.context.extend(text[:50])
    before = speculator.propose(view, 16)
    past = RequestView(0, view.request, VOCAB, view.context.before(len(PROMPT) + 20))
    assert speculator.propose(past, 16) == []
    assert speculator.propose(view, 16) == before


def test_ids_that_the_target_cannot_write_are_not_drafted() -> None:
    prediction = [5, 6, 499, 7, 500, 8, 9]
    speculator, view = Prediction(), view_of(prediction, vocab_size=500)
    speculator.begin(view)
    view.context.extend([5])
    [branch] = speculator.propose(view, 64)
    assert list(branch.tokens) == [6, 499, 7]


@given(
    st.lists(st.integers(-1, 6), min_size=1, max_size=60),
    st.lists(st.integers(0, 5), min_size=1, max_size=120),
    st.integers(1, 40),
)
def test_drafts_are_trees_within_bounds_whatever_is_predicted(
    prediction: list[int], answer: list[int], budget: int
) -> None:
    speculator, view = Prediction(), view_of(prediction, len(answer), vocab_size=6)
    speculator.begin(view)
    for token in answer:
        view.context.extend([token])
        branches = speculator.propose(view, budget)
        assert len(branches) <= 1
        for branch in branches:
            assert branch.scores is not None
            assert 1 <= len(branch.tokens) <= budget
            assert all(0 <= drafted < 6 for drafted in branch.tokens)
            assert len(branch.tokens) == len(branch.scores) == len(branch.above)
            edges = list(zip(branch.above, branch.tokens, strict=True))
            assert len(set(edges)) == len(edges)
            assert all(ROOT <= above < node for node, above in enumerate(branch.above))
            assert all(0.0 < score <= 1.0 for score in branch.scores)
            reach = np.ones(len(edges) + 1)
            for node, (above, score) in enumerate(zip(branch.above, branch.scores, strict=True)):
                reach[node] = reach[above] * score
            assert reach[:-1].min() >= 0.99 * PredictionConfig().least


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9)), max_size=200))
def test_replacements_are_bounded_and_found_by_what_they_replace(known: list[tuple[int, int, int]]) -> None:
    replacements = Replacements()
    for first, length, new in known:
        replacements.add([first, *range(length - 1)], [new])
    kept = [one for here in replacements.by_first.values() for one in here]
    assert len(kept) <= MOST
    assert all(0 < len(here) <= MOST_HERE for here in replacements.by_first.values())
    assert all(len(one.old) <= LONGEST for one in kept)
    for one in kept:
        at = np.array([*one.old, 99], np.int32)
        assert one in replacements.at(at, 0)
        assert one not in replacements.at(at, len(at) - 1)


@pytest.mark.parametrize("wrong", [{"least": 0.0}, {"least": 1.5}, {"places": 0}, {"places": 65}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PredictionConfig(**wrong)


def test_joined_with_others_it_gives_up_nothing() -> None:
    answer = text_of(500, 5)
    prediction = scattered(answer, 0.1, 5)
    alone = Steps(Prediction(), prediction, answer).tokens_per_step
    assert Steps(create("suffix"), prediction, answer).tokens_per_step < alone
    assert Steps(create("prediction+suffix"), prediction, answer).tokens_per_step >= 0.97 * alone
