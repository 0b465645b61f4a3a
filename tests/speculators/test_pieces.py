"""A long prompt is learnt in pieces: afterwards drafts are what they are when it is learnt at once."""

from __future__ import annotations

import pytest

import speculators.ngrams.lookahead as lookahead
import speculators.spectra.core as core
import speculators.successors.speculator as successors
from engine.composer import compose
from engine.protocol import Branch, Outcome, RequestView, Speculator
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE
from speculators.pieces import PIECE
from speculators.registry import SpeculatorOptions, create
from speculators.testing import HashTarget

TARGET = HashTarget(200, 3)
LENGTH = 5 * PIECE + 77
METHODS = ("spectra-core", "spectra", "lookahead", "suffix")


def prompt() -> list[int]:
    text = [7]
    while len(text) < LENGTH:
        text.append(len(text) * 7 % 200 if len(text) % 9 == 0 else TARGET.next_token(text))
    return text


def drafts(method: Speculator, n_chunks: int, n_steps: int = 12, n_read: int = 0) -> list[list[Branch]]:
    """Of the steps behind a prompt that is observed in so many chunks, of ``n_read`` tokens each."""
    view = RequestView.of(0, Request(prompt(), SamplingParams(seed=3)), TARGET.vocab_size)
    method.begin(view)
    for _ in range(n_chunks - 1):
        method.observe(view, Outcome((), EMPTY_TREE, n_read=n_read))
    outcome = Outcome((TARGET.next_token(view.context.view.tolist()),), EMPTY_TREE, n_read=n_read)
    made = []
    for _ in range(n_steps):
        view.context.extend(outcome.tokens)
        method.observe(view, outcome)
        made.append(method.propose(view, 64))
        tree = compose(made[-1], 64)
        outcome = TARGET.score(view.context.view[-2:].tolist(), tree)
    return made


def at_once(name: str, monkeypatch: pytest.MonkeyPatch, n_steps: int = 12) -> list[list[Branch]]:
    with monkeypatch.context() as patch:
        for module in (core, lookahead, successors):
            patch.setattr(module, "PIECE", LENGTH)
        return drafts(create(name, SpeculatorOptions()), 1, n_steps)


@pytest.mark.parametrize("name", METHODS)
def test_drafts_behind_chunks_are_those_of_a_prompt_learnt_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = at_once(name, monkeypatch)
    assert any(wanted)
    assert drafts(create(name, SpeculatorOptions()), 6) == wanted


@pytest.mark.parametrize("name", METHODS)
def test_drafts_behind_long_chunks_are_those_of_a_prompt_learnt_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = at_once(name, monkeypatch)
    assert drafts(create(name, SpeculatorOptions()), 2, n_read=-(-LENGTH // 2)) == wanted


def test_counted_successors_are_complete_before_the_first_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drafts(create("suffix", SpeculatorOptions()), 1) == at_once("suffix", monkeypatch)


@pytest.mark.parametrize("name", ["spectra-core", "lookahead"])
def test_a_prompt_from_the_cache_is_learnt_step_by_step_and_nothing_probed_before(name: str) -> None:
    method = create(name, SpeculatorOptions())
    made = drafts(method, 1)
    behind = [not any(branch.probe for branch in branches) for branches in made]
    assert behind == [True] * 4 + [False] * (len(made) - 4)
