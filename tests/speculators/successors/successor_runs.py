"""Requests that decode with the mixed model, and tables and tails to compare it with."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.composer import compose
from engine.protocol import Branch, Outcome, RequestView
from speculators.successors.config import TARGET, TEXT, SuccessorConfig
from speculators.successors.speculator import Successors
from speculators.successors.table import NONE, TAIL, fill_tail, find, hash_tail
from speculators.testing import HashTarget
from tests.speculators import drafts

BOTH = (TEXT, TARGET)
HALVES = [(TEXT,), (TARGET,), BOTH]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SMALL = SuccessorConfig(target_rows=512, text_rows=512)
NO_ANSWERS = (*(np.empty(0, np.int32) for _ in range(3)), np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))


def view(prompt: list[int], request_id: int = 0, vocab_size: int = 48, **settings: Any) -> RequestView:
    return drafts.view(prompt, request_id, vocab_size, **settings)


class SuccessorRun:
    """One request, decoded step by step."""

    def __init__(self, speculator: Successors, target: HashTarget, request: RequestView, budget: int = 24) -> None:
        self.speculator, self.target, self.request, self.budget = speculator, target, request, budget
        speculator.begin(request)
        self.drafts: list[list[Branch]] = []
        self._commit(target.read_prompt(request.context.view.tolist()))

    def step(self) -> None:
        branches = self.speculator.propose(self.request, self.budget)
        self.drafts.append(branches)
        self._commit(self.target.score(self.request.context.view.tolist(), compose(branches, self.budget)))

    def _commit(self, outcome: Outcome) -> None:
        self.request.context.extend(outcome.tokens)
        self.speculator.observe(self.request, outcome)

    @property
    def output(self) -> list[int]:
        prompt, output = np.split(self.request.context.view, [self.request.n_prompt])
        assert output.tolist() == self.target.generate(prompt.tolist(), len(output))
        return output.tolist()


def decode(speculator: Successors, target: HashTarget, request: RequestView, n_steps: int = 10) -> SuccessorRun:
    run = SuccessorRun(speculator, target, request)
    for _ in range(n_steps):
        run.step()
    speculator.end(request)
    return run


def array(tokens: Any) -> Any:
    return np.array(tokens, np.int32)


def tail_of(tokens: Any) -> Any:
    tail = np.empty(TAIL, np.int32)
    fill_tail(tail, array(tokens), len(tokens))
    return tail


def row_of(table: Any, gram: Any) -> dict[int, float] | None:
    """Return the successors of ``gram`` in a table: token -> weight; None if it has no row."""
    row = find(table, np.uint64(hash_tail(tail_of(gram), len(gram)))) if gram else NONE
    if row == NONE:
        return None
    n = int((np.append(table.ids[row], NONE) == NONE).argmax())
    ids = table.ids[row, :n].tolist()
    assert len(set(ids)) == n
    return dict(zip(ids, table.weights[row, :n].tolist(), strict=True))


def knowledge(model):
    """Return tables, as key -> row, and trusts."""
    tables = []
    for table in (model.text, model.target):
        used = np.flatnonzero(table.keys)
        rows = table.slots[used, 0]
        ids = table.ids[rows]
        unused = (ids == NONE).cumsum(1) > 0
        ids[unused], weights = NONE, np.where(unused, 0.0, table.weights[rows])
        tables.append(
            dict(zip(table.keys[used].tolist(), zip(ids.tolist(), weights.tolist(), strict=True), strict=True))
        )
    return tables, model.trusts.tolist()
