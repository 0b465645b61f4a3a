"""Where in a prediction an answer is: against exhaustive alignment, and after every kind of edit."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculators.prediction.alignment import FOUND, LEAST, LOST, Alignment
from speculators.prediction.config import PredictionConfig

PREDICTED = list(range(100, 300))  # all different: where an answer is has one right answer
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
    "cut into other tokens": (50, 52, [1, 2, 3]),
}


def aligned(predicted: list[int], written: list[int], most: int = 8) -> Alignment:
    alignment = Alignment(np.array(predicted, np.int32), most)
    alignment.read(np.array(written, np.int32))
    return alignment


def fewest_edits(predicted: list[int], written: list[int]) -> list[int]:
    """Oracle: by position, what it takes to make what is before it the written text: 1 for a token that is left out, 4
    for one that was not predicted."""
    row = list(range(len(predicted) + 1))
    for token in written:
        above, row = row, [row[0] + 4]
        for position, expected in enumerate(predicted, 1):
            row.append(min(above[position - 1] + 4 * (expected != token), above[position] + 4, row[-1] + 1))
    return row


@pytest.mark.parametrize("kind", EDITS)
def test_an_answer_is_found_again_behind_an_edit(kind: str) -> None:
    first, last, new = EDITS[kind]
    answer = [*PREDICTED[:first], *new, *PREDICTED[last:]]
    for more in (2, 3, 20):
        alignment = aligned(PREDICTED, answer[: first + len(new) + more])
        assert alignment.places[0].position == last + more
        assert alignment.places[0].weight > 0.5


@pytest.mark.parametrize("kind", ["replaced", "inserted", "cut into other tokens"])
def test_the_right_place_is_among_the_first_as_soon_as_an_edit_ends(kind: str) -> None:
    first, last, new = EDITS[kind]
    alignment = aligned(PREDICTED, [*PREDICTED[:first], *new])
    assert last in [place.position for place in alignment.places]


@st.composite
def edited(draw: st.DrawFn) -> list[int]:
    """``PREDICTED`` with a few edits, and a few predicted tokens behind the last."""
    answer: list[int] = []
    place = 0
    for _ in range(draw(st.integers(0, 5))):
        kept, gone = draw(st.integers(3, 20)), draw(st.integers(0, 4))
        answer += PREDICTED[place : place + kept]
        place += kept + gone
        answer += draw(st.lists(st.integers(0, 9), max_size=4))
    return [*answer, *PREDICTED[place : place + 3]]


@given(edited())
def test_the_likeliest_place_is_where_the_fewest_edits_lead(answer: list[int]) -> None:
    edits = fewest_edits(PREDICTED, answer)
    assert aligned(PREDICTED, answer).places[0].position == edits.index(min(edits))


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 4), max_size=90), st.integers(1, 8))
def test_places_are_a_distribution_whatever_is_written(predicted: list[int], written: list[int], most: int) -> None:
    alignment = aligned(predicted, written, most)
    places = alignment.places
    assert 1 <= len(places) <= max(most, 6)
    assert sum(place.weight for place in places) == pytest.approx(1.0)
    assert all(place.weight >= LEAST for place in places)
    assert all(0 <= place.position <= len(predicted) for place in places)
    assert alignment.n_read == len(written)


def test_a_text_that_left_the_prediction_comes_back_by_a_long_match_alone() -> None:
    astray = [*PREDICTED[:20], *[OTHER] * (LOST + 5)]
    assert aligned(PREDICTED, astray).is_lost
    alignment = Alignment(np.array(PREDICTED, np.int32), 8)
    for end in range(1, len(astray) + 1):
        alignment.read(np.array(astray[:end], np.int32))
    for n in range(1, FOUND + 1):
        alignment.read(np.array([*astray, *PREDICTED[120 : 120 + n]], np.int32))
        assert alignment.is_lost == (n < FOUND)
    assert alignment.places[0].position == 120 + FOUND


def test_of_equal_matches_the_nearest_is_likeliest() -> None:
    line = [1, 2, 3, 4]
    predicted = [*line, *range(10, 40), *line, *range(40, 70), *line, *range(70, 90)]
    answer = [*predicted[:30], *[OTHER] * 6, *line]
    assert aligned(predicted, answer).places[0].position == predicted.index(40)


def test_a_replacement_is_learnt_once_and_followed_wherever_it_recurs() -> None:
    rng = random.Random(3)
    predicted = [token for i in range(12) for token in (50, 51, *rng.choices(range(100, 400), k=9))]
    answer = [token for i in range(12) for token in (60, *predicted[11 * i + 2 : 11 * i + 11])]
    alignment = Alignment(np.array(predicted, np.int32), PredictionConfig().places)
    alignment.read(np.array(answer[:5], np.int32))
    [known] = alignment.replacements.by_first[50]
    assert (known.old, known.new) == ((50, 51), (60,))
    alignment.read(np.array(answer[:30], np.int32))
    assert known.tried == known.hits == 3.0
    assert list(alignment.replacements.by_first) == [50]
