"""``prediction``: its drafts, and where it finds an answer in the prediction."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import RequestView, Speculator
from engine.verify.rules import walk_text
from speculators.prediction.alignment import FOUND_MATCH, LEAST_WEIGHT, LOST_AFTER, Alignment
from speculators.prediction.edits import LONGEST, MOST_PER_TOKEN, Replacements
from speculators.prediction.speculator import Prediction, PredictionConfig
from speculators.registry import create
from tests.speculators.drafts import paths_of, view

VOCAB = 500
PROMPT = [3, 1, 4]


def text_of(n: int, seed: int = 0, vocabulary: int = 80) -> list[int]:
    """Return tokens as in files: some common, many rare, and repeated lines."""
    rng = random.Random(seed)
    lines = [
        [rng.randrange(int(vocabulary * rng.random() ** 2) + 1) for _ in range(rng.randint(4, 14))] for _ in range(40)
    ]
    text: list[int] = []
    while len(text) < n:
        text += rng.choice(lines) if rng.random() < 0.3 else [rng.randrange(vocabulary) for _ in range(9)]
    return text[:n]


def scattered(text: Sequence[int], share: float, seed: int = 0) -> list[int]:
    """Return ``text`` with a share of its tokens replaced, left out or preceded by another."""
    rng, changed = random.Random(seed), list(text)
    for place in sorted(rng.sample(range(len(text)), int(share * len(text))), reverse=True):
        kind = rng.randrange(3)
        changed[place : place + (kind > 0)] = [rng.randrange(80)] if kind < 2 else []
    return changed


def view_of(prediction: list[int], n: int = 1000, vocab_size: int = VOCAB, emitted: Sequence[int] = ()) -> RequestView:
    return view(PROMPT, vocab_size=vocab_size, prediction=prediction, max_tokens=n, emitted=list(emitted))


class Steps:
    """Decodes an answer step by step with a speculator's drafts; keeps the number of tokens and nodes of each step."""

    def __init__(self, speculator: Speculator, prediction: list[int], answer: Sequence[int], budget: int = 64) -> None:
        request = view_of(prediction, len(answer))
        speculator.begin(request)
        request.context.extend(answer[:1])
        self.committed: list[int] = []  # tokens of every step
        self.nodes: list[int] = []
        done = 1
        while done < len(answer):
            tree = compose(speculator.propose(request, budget), budget)
            tokens, _ = walk_text(tree, answer[done:])
            request.context.extend(tokens)
            done += len(tokens)
            self.committed.append(len(tokens))
            self.nodes.append(len(tree))
        assert request.context.view[len(PROMPT) :].tolist() == list(answer)
        speculator.end(request)


def test_a_correct_prediction_fills_every_step() -> None:
    text = text_of(300)
    assert Steps(Prediction(), text, text).committed == [65, 65, 65, 65, 39]
    assert Steps(Prediction(), text, text[:150]).committed == [65, 65, 19]
    assert Steps(Prediction(), text[:150], text).committed[:2] == [65, 65]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
def test_each_scattered_edit_costs_about_one_step(share: float) -> None:
    answer = text_of(600, 5)
    prediction = scattered(answer, share, 5)
    n_alone = len(Steps(Prediction(), prediction, answer).committed)
    assert n_alone < 600 / 65 + 1.6 * 600 * share
    assert n_alone <= len(Steps(create("suffix"), prediction, answer).committed)
    assert len(Steps(create("prediction+suffix"), prediction, answer).committed) <= 1.05 * n_alone


def test_a_renamed_symbol_costs_one_step_only_the_first_times() -> None:
    rng = random.Random(0)
    rest = [rng.choices(range(100, 400), k=12) for _ in range(30)]
    prediction = [token for line in rest for token in (*line[:6], 50, 51, *line[6:])]
    answer = [token for line in rest for token in (*line[:6], 60, 61, 62, *line[6:])]
    assert len(Steps(Prediction(), prediction, answer).committed) < 15 < len(rest)


@pytest.mark.parametrize("vocabulary", [80, 12])
def test_a_useless_prediction_soon_drafts_nothing(vocabulary: int) -> None:
    answer, other = text_of(400, 1, vocabulary), text_of(400, 2, vocabulary)
    foreign = Steps(Prediction(), [token + 200 for token in other], answer)
    assert sum(foreign.nodes) < 40
    assert not any(foreign.nodes[LOST_AFTER:])
    similar = Steps(Prediction(), other, answer)  # of the same tokens, in another order
    assert sum(similar.nodes) < 3 * len(similar.nodes)


def test_a_request_without_a_prediction_drafts_nothing() -> None:
    speculator, request = Prediction(), view_of([], emitted=[1, 2, 3])
    speculator.begin(request)
    assert speculator.propose(request, 64) == []


def test_a_resumed_request_continues_at_its_place() -> None:
    text = text_of(300)
    speculator, request = Prediction(), view_of(text, emitted=text[:120])
    speculator.begin(request)
    before = speculator.propose(request, 64)
    assert [list(branch.tokens) for branch in before] == [text[120:184]]
    past = RequestView(0, request.request, VOCAB, request.context.before(len(PROMPT) + 20))
    assert speculator.propose(past, 64) == []  # an earlier context has no draft and changes no state
    assert speculator.propose(request, 64) == before


def test_ids_outside_the_vocabulary_are_not_drafted() -> None:
    speculator, request = Prediction(), view_of([5, 6, 499, 7, 500, 8, 9], vocab_size=500, emitted=[5])
    speculator.begin(request)
    [branch] = speculator.propose(request, 64)
    assert list(branch.tokens) == [6, 499, 7]


@given(
    st.lists(st.integers(-1, 6), min_size=1, max_size=60),
    st.lists(st.integers(0, 5), min_size=1, max_size=120),
    st.integers(1, 40),
)
def test_drafts_are_trees_within_bounds_for_any_prediction(
    prediction: list[int], answer: list[int], budget: int
) -> None:
    speculator, request = Prediction(), view_of(prediction, len(answer), vocab_size=6)
    speculator.begin(request)
    for token in answer:
        request.context.extend([token])
        branches = speculator.propose(request, budget)
        assert len(branches) <= 1
        for branch in branches:
            assert branch.scores is not None
            assert 1 <= len(branch.tokens) == len(branch.scores) <= budget
            assert all(0 <= drafted < 6 for drafted in branch.tokens)
            assert len(set(paths_of(branches))) == len(branch.tokens)
            assert all(0.0 < score <= 1.0 for score in branch.scores)
            reach = np.ones(len(branch.tokens) + 1)
            for node, (above, score) in enumerate(zip(branch.above, branch.scores, strict=True)):
                reach[node] = reach[above] * score
            assert reach[:-1].min() >= 0.99 * PredictionConfig().least


PREDICTED = list(range(100, 300))  # all different, so that every place is unambiguous
OTHER = 7  # in no prediction
EDITS = {
    "replaced": (50, 53, [1, 2, 3]),
    "replaced by fewer": (50, 54, [1]),
    "replaced by more": (50, 51, [1, 2, 3, 4]),
    "inserted": (50, 50, [1, 2]),
    "a function inserted": (50, 50, [OTHER] * 40),
    "left out": (50, 53, []),
    "much left out": (50, 95, []),
    "a function left out": (50, 150, []),
}


def aligned(predicted: list[int], written: list[int], most: int = 8) -> Alignment:
    alignment = Alignment(np.array(predicted, np.int32), most)
    alignment.read(np.array(written, np.int32))
    return alignment


def fewest_edits(predicted: list[int], written: list[int]) -> list[int]:
    """Return by position the cost of editing the prediction before it into the written text.

    A left-out token costs 1, an unpredicted one 4.
    """
    row = list(range(len(predicted) + 1))
    for token in written:
        above, row = row, [row[0] + 4]
        for position, expected in enumerate(predicted, 1):
            row.append(min(above[position - 1] + 4 * (expected != token), above[position] + 4, row[-1] + 1))
    return row


@pytest.mark.parametrize("kind", EDITS)
def test_the_place_after_an_edit_is_found(kind: str) -> None:
    first, last, new = EDITS[kind]
    answer = [*PREDICTED[:first], *new, *PREDICTED[last:]]
    for more in (2, 3, 20):
        alignment = aligned(PREDICTED, answer[: first + len(new) + more])
        assert alignment.places[0].position == last + more
        assert alignment.places[0].weight > 0.5
    if kind in ("replaced", "inserted"):
        places = aligned(PREDICTED, answer[: first + len(new)]).places
        assert last in [place.position for place in places], "found as soon as the edit ends"


@st.composite
def edited(draw: st.DrawFn) -> list[int]:
    """Return ``PREDICTED`` with a few edits, up to three tokens after the last one."""
    answer: list[int] = []
    place = 0
    for _ in range(draw(st.integers(0, 5))):
        kept, skipped = draw(st.integers(3, 20)), draw(st.integers(0, 4))
        answer += PREDICTED[place : place + kept]
        place += kept + skipped
        answer += draw(st.lists(st.integers(0, 9), max_size=4))
    return [*answer, *PREDICTED[place : place + 3]]


@given(edited())
def test_the_most_probable_place_needs_the_fewest_edits(answer: list[int]) -> None:
    edits = fewest_edits(PREDICTED, answer)
    assert aligned(PREDICTED, answer).places[0].position == edits.index(min(edits))


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 4), max_size=90), st.integers(1, 8))
def test_places_are_a_distribution_for_any_text(predicted: list[int], written: list[int], most: int) -> None:
    alignment = aligned(predicted, written, most)
    places = alignment.places
    assert 1 <= len(places) <= max(most, 6)
    assert sum(place.weight for place in places) == pytest.approx(1.0)
    assert all(place.weight >= LEAST_WEIGHT for place in places)
    assert all(0 <= place.position <= len(predicted) for place in places)
    assert alignment.n_read == len(written)


def test_a_lost_answer_is_found_by_a_long_match() -> None:
    astray = [*PREDICTED[:20], *[OTHER] * (LOST_AFTER + 5)]
    for n in range(FOUND_MATCH + 1):
        alignment = aligned(PREDICTED, [*astray, *PREDICTED[120 : 120 + n]])
        assert alignment.is_lost == (n < FOUND_MATCH)
    assert alignment.places[0].position == 120 + FOUND_MATCH


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9)), max_size=200))
def test_replacements_are_bounded_and_found_by_their_old_tokens(known: list[tuple[int, int, int]]) -> None:
    replacements = Replacements()
    for first, length, new in known:
        replacements.add([first, *range(length - 1)], [new])
    kept = [one for here in replacements.by_first.values() for one in here]
    assert all(0 < len(here) <= MOST_PER_TOKEN for here in replacements.by_first.values())
    for one in kept:
        assert len(one.old) <= LONGEST
        assert one in replacements.at(np.array([*one.old, 99], np.int32), 0)
