"""What goes wrong between a target and its drafter, and leaves the text right, the oracle notices."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

from tests.support.incremental_drafter import IncrementalDFlash, IncrementalDrafter, Sequence
from tests.support.naive_drafter import NaiveDrafter
from tests.support.tiny_drafters import DFLASH, EAGLE, PARALLEL, TinyDrafter, tiny_drafter, tiny_states

TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
MORE = [5, 3, 5]  # drafted and accepted, then the bonus token
CHAIN = [(-1, 5), (0, 3)]
NOTICED = 1e-2  # a difference of scores, which are of size about one

ALL = {**EAGLE, **PARALLEL, **DFLASH}
READING = {name: spec for name, spec in ALL.items() if spec.reads_states}
TAPPED = {name: spec for name, spec in ALL.items() if spec.taps}


def found(drafter: TinyDrafter, states: Tensor, tokens: list[int] = TEXT) -> np.ndarray:
    sequence = Sequence(tokens, states)
    if drafter.spec.method == "dflash":
        return IncrementalDFlash(drafter).draft([sequence], [CHAIN])[0][0].numpy()
    runner = IncrementalDrafter(drafter)
    scores = runner.draft([sequence], [CHAIN]) if drafter.spec.method == "eagle" else runner.draft_parallel([sequence])
    return scores[0].numpy()


def wanted(drafter: TinyDrafter, states: Tensor, tokens: list[int] = TEXT) -> np.ndarray:
    oracle, known = NaiveDrafter(drafter), states.numpy()[: len(tokens) - 1]
    if drafter.spec.method == "dflash":
        return oracle.dflash(tokens, known, CHAIN)[0]
    return oracle.eagle(tokens, known, CHAIN) if drafter.spec.method == "eagle" else oracle.parallel(tokens, known)


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max())


@pytest.mark.parametrize("name", ALL)
def test_the_scores_of_this_file_are_right_unchanged(name: str) -> None:
    drafter = tiny_drafter(ALL[name])
    states = tiny_states(drafter.spec, 20)
    assert difference(found(drafter, states), wanted(drafter, states)) < 1e-9


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("shift", [-1, 1])
def test_states_shifted_by_one(name: str, shift: int) -> None:
    drafter = tiny_drafter(READING[name])
    states = tiny_states(drafter.spec, 20)
    assert difference(found(drafter, states.roll(shift, 0)), wanted(drafter, states)) > NOTICED


@pytest.mark.parametrize("name", TAPPED)
def test_a_dropped_tap(name: str) -> None:
    drafter = tiny_drafter(TAPPED[name])
    states = tiny_states(drafter.spec, 20)
    dropped = states.clone()
    dropped[:, -drafter.spec.target_hidden_size :] = 0
    assert difference(found(drafter, dropped), wanted(drafter, states)) > NOTICED


@pytest.mark.parametrize("name", TAPPED)
def test_taps_in_another_order(name: str) -> None:
    drafter = tiny_drafter(TAPPED[name])
    states = tiny_states(drafter.spec, 20)
    turned = states.roll(drafter.spec.target_hidden_size, 1)
    assert difference(found(drafter, turned), wanted(drafter, states)) > NOTICED


@pytest.mark.parametrize("name", EAGLE)
def test_accepted_rows_that_keep_their_drafted_states(name: str) -> None:
    drafter = tiny_drafter(EAGLE[name])
    states, runner = tiny_states(drafter.spec, 20), IncrementalDrafter(drafter)
    sequence = Sequence(TEXT, states)
    runner.draft([sequence], [CHAIN])
    sequence.tokens = TEXT + MORE
    sequence.slots = sequence.slots + [runner.speculative[0][node] for node in range(len(CHAIN))]
    scores = runner.draft([sequence], [CHAIN])[0].numpy()
    assert difference(scores, wanted(drafter, states, TEXT + MORE)) > NOTICED


@pytest.mark.parametrize("name", PARALLEL)
def test_masks_of_an_earlier_draft_that_are_still_seen(name: str) -> None:
    drafter = tiny_drafter(PARALLEL[name])
    states, runner = tiny_states(drafter.spec, 20), IncrementalDrafter(drafter)
    sequence = Sequence(TEXT, states)
    runner.draft_parallel([sequence])
    sequence.tokens = TEXT + MORE
    sequence.slots = sequence.slots + [runner.speculative[0][mask] for mask in range(drafter.spec.n_drafts - 1)]
    scores = runner.draft_parallel([sequence])[0].numpy()
    assert difference(scores, wanted(drafter, states, TEXT + MORE)) > NOTICED
