"""Drives a scheduler and a target as a router does, in random order and with failures."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager

import numpy as np
import pytest

from engine.loop import Engine
from engine.request import Request
from engine.scheduling.commit import Commit
from engine.scheduling.drafting import DraftRound, run_round, start_round
from engine.scheduling.sequence import Sequence, SequenceState
from engine.step import Step, StepResult
from engine.target_model.local import LocalTarget
from engine.tree import IntArray


@contextmanager
def watched(engine: Engine) -> Iterator[list[Step]]:
    """Every step of the engine's target while the context lasts."""
    steps: list[Step] = []
    run = engine.target.step

    def step(made: Step) -> StepResult:
        steps.append(made)
        return run(made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.target, "step", step)
        yield steps


class StepDriver:
    """An engine's parts, run as a pipeline runs them: results come in order, but late."""

    def __init__(self, engine: Engine, depth: int) -> None:
        self.engine = engine
        self._depth = depth
        self._rows: dict[int, list[IntArray]] = {}  # sequence -> rows of its prompt that its speculator observed
        self._in_flight: deque[tuple[Step, StepResult, list[Sequence]]] = deque()
        self._rounds: deque[DraftRound] = deque()
        self._n_steps = 0
        self.requests: list[Sequence] = []
        self.cancelled: set[int] = set()
        self.most_in_flight = 0
        self.most_chunks = 0  # of one prompt in flight

    def submit(self, job: Request) -> None:
        self.requests.append(self.engine.scheduler.find(self.engine.submit(job)))

    def cancel(self, index: int) -> None:
        if index < len(self.requests) and self.requests[index].state is not SequenceState.FINISHED:
            self.cancelled.add(index)
            self.engine.cancel(self.requests[index].seq)

    def lose_target(self, fresh: LocalTarget) -> None:
        self._in_flight.clear()
        self.engine.scheduler.lose_target()
        self.engine.target = fresh

    def send(self, is_broken: bool = False) -> bool:
        step = self.engine.scheduler.next_step(self._n_steps, len(self._in_flight))
        if step is None:
            return False
        self._n_steps += 1
        assert len(self._in_flight) < self._depth
        requests = [self.engine.scheduler.find(work.seq) for work in step.work]
        result = self._break(step) if is_broken else self.engine.target.step(step)
        self._in_flight.append((step, result, requests))
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        self.most_chunks = max([self.most_chunks, *(request.in_flight for request in requests)])
        return True

    def _break(self, step: Step) -> StepResult:
        """Fail a step: it may have run on the first stage, and on no other."""
        stages = self.engine.target._stages  # type: ignore[attr-defined]
        for stage in stages:
            stage.admit(step)
        if step.work and step.step_id % 2:
            stages[0].prepare(step)
            stages[0].forward(step, None)
        return StepResult(step.step_id, [], 0.0, "broken")

    def receive(self) -> bool:
        if not self._in_flight:
            return False
        step, result, requests = self._in_flight.popleft()
        if result.error:
            self._fail(requests)
            return True
        commits = self.engine.scheduler.commit(step, result, requests)
        self._check_rows(commits)
        draft_round = start_round(commits, self.engine.scheduler)
        for request in draft_round.finished:
            self.engine.pool.end(request.seq)
        self._rounds.append(draft_round)
        self.settle(commits, draft_round)
        return True

    def _fail(self, requests: Items[Sequence]) -> None:
        for request in requests:
            self.cancelled.add(self.requests.index(request))
            self.engine.scheduler.fail(request)
            self.engine.pool.end(request.seq)

    def _check_rows(self, commits: Items[Commit]) -> None:
        """Outcomes of chunks have the rows of every position of a prompt once, in order."""
        for commit in commits:
            if commit.outcome is not None and commit.outcome.prompt_top_ids is not None:
                rows = self._rows.setdefault(commit.sequence.seq, [])
                assert commit.outcome.prompt_start == sum(map(len, rows))
                rows.append(commit.outcome.prompt_top_ids)

    def rows_of(self, index: int) -> IntArray:
        """The rows of a request's prompt that its speculator observed."""
        rows = self._rows.get(self.requests[index].seq)
        return np.concatenate(rows) if rows else np.zeros((0, 0), np.int32)

    def draft(self) -> bool:
        if not self._rounds:
            return False
        draft_round = self._rounds.popleft()
        run_round(draft_round, self.engine.pool, self.engine.scheduler)
        return True

    def settle(self, commits: Items[Commit], draft_round: DraftRound) -> None:
        """Do what a router does after it has sent steps."""
        self.engine.scheduler.build_events(commits)
        for seq in self.engine.pool.settle(draft_round.resting_outcomes, 0.0):
            self.requests[seq].rests = False

    def tick(self, rng: random.Random) -> None:
        """Do one thing that is possible."""
        actions = [self.send, self.receive, self.draft]
        rng.shuffle(actions)
        assert any(action() for action in actions), "stalled"

    def finish(self, rng: random.Random) -> None:
        while self.engine.scheduler.has_work or self._in_flight:
            self.tick(rng)

    def check(self, expected: Items[list[int]]) -> None:
        """Requests that were not cancelled have the right output, the others its beginning."""
        for index, request in enumerate(self.requests):
            output = request.tokens[request.n_prompt :]
            assert request.state is SequenceState.FINISHED
            assert output == expected[index][: len(output)]
            assert index in self.cancelled or output == expected[index]
