"""A long prompt is learnt in pieces; afterwards drafts are those of a prompt that is learnt at once."""

from __future__ import annotations

import pytest

import speculators.ngrams.lookahead as lookahead
import speculators.spectra.core as core
import speculators.successors.speculator as successors
from engine.composer import compose
from engine.protocol import Branch, Outcome
from engine.tree import EMPTY_TREE
from speculators.pieces import PIECE
from speculators.registry import create
from speculators.testing import HashTarget
from tests.support.drafts import view

TARGET = HashTarget(200, 3)
LENGTH = 5 * PIECE + 77


def prompt() -> list[int]:
    text = [7]
    while len(text) < LENGTH:
        text.append(len(text) * 7 % 200 if len(text) % 9 == 0 else TARGET.next_token(text))
    return text


def drafts(name: str, n_chunks: int, n_read: int = 0) -> list[list[Branch]]:
    """Drafts of twelve steps after a prompt that is observed in ``n_chunks`` chunks of ``n_read`` tokens each."""
    method, request = create(name), view(prompt(), vocab_size=TARGET.vocab_size, seed=3)
    method.begin(request)
    for _ in range(n_chunks - 1):
        method.observe(request, Outcome((), EMPTY_TREE, n_read=n_read))
    outcome = Outcome((TARGET.next_token(request.context.view.tolist()),), EMPTY_TREE, n_read=n_read)
    made = []
    for _ in range(12):
        request.context.extend(outcome.tokens)
        method.observe(request, outcome)
        made.append(method.propose(request, 64))
        outcome = TARGET.score(request.context.view[-2:].tolist(), compose(made[-1], 64))
    return made


@pytest.mark.parametrize("name", ["spectra-core", "spectra", "lookahead", "suffix"])
def test_drafts_after_chunks_are_those_of_a_prompt_learnt_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_pieces = [drafts(name, 6), drafts(name, 2, n_read=-(-LENGTH // 2))]
    from_cache = drafts(name, 1)  # the prefix cache had the whole prompt: nothing was read in chunks
    for module in (core, lookahead, successors):
        monkeypatch.setattr(module, "PIECE", LENGTH)
    at_once = drafts(name, 1)
    assert any(at_once)
    assert in_pieces == [at_once, at_once]
    if name == "suffix":  # counts of successors are complete before the first draft
        assert from_cache == at_once
    elif name != "spectra":  # learnt step by step; nothing is probed before all of it is known
        unprobed = [not any(branch.probe for branch in branches) for branches in from_cache]
        assert unprobed == [True] * 4 + [False] * (len(from_cache) - 4)
