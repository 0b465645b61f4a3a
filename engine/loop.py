"""The offline decode loop: scheduler, target and speculators in one thread, for ``spectra generate`` and tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from msgspec.structs import replace

from engine.events import RequestStats, StepEvent, TokenLogprob
from engine.protocol import DraftPool, Needs
from engine.request import Request
from engine.scheduling.batching_policy import BatchingPolicy
from engine.scheduling.commit import Commit
from engine.scheduling.drafting import AUTOREGRESSIVE, DraftRound, run_round, start_round
from engine.scheduling.scheduler import Scheduler, SchedulerOptions
from engine.scheduling.sequence import Sequence
from engine.step import Step, StepResult
from engine.step_cost import StepCosts
from engine.target_model.info import Target


@dataclass(frozen=True, slots=True)
class Completion:
    """The output of a finished request."""

    token_ids: list[int]
    finish_reason: str
    stats: RequestStats
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob] | None = None  # from the second token of the prompt


class Engine:
    """Runs requests on a target. Not thread-safe.

    Args:
        target: runs the steps.
        pool: speculators.
        options: of the batching policy.
        costs: the target's step times, for the batching policy; None: not measured.
        clock: of the host's time between an answer and the next send, in seconds.
    """

    def __init__(
        self,
        target: Target,
        pool: DraftPool,
        options: SchedulerOptions | None = None,
        costs: StepCosts | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target = target
        self.pool = pool
        self.scheduler = Scheduler(BatchingPolicy(target.info, options, costs))
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 0
        self._next_step = 0
        self._clock = clock
        self._took_at = 0.0
        self._taken: tuple[list[Commit], DraftRound] | None = None  # that ``settle`` has not seen

    def submit(self, request: Request) -> int:
        """Queue a request; return its number.

        Raises:
            RequestError: the request can never be served (its subclasses give the reason).
            OverloadedError: the queue is full.
        """
        if not request.method:
            request = replace(request, method=AUTOREGRESSIVE)
        needs = Needs() if request.method == AUTOREGRESSIVE else self.pool.needs(request.method, request)
        seq = self._next_id
        sequence = Sequence.of(seq, request, needs)
        self.scheduler.submit(sequence)
        self._next_id += 1
        self._sequences[seq] = sequence
        if request.method != AUTOREGRESSIVE:
            self.pool.begin(seq, request, self.target.info.spec.vocab_size)
        return seq

    def cancel(self, seq: int) -> None:
        """Stop a request now; a finished one is ignored."""
        sequence = self._sequences.pop(seq, None)
        if sequence is not None:
            self.scheduler.cancel(sequence)
            self.pool.end(seq)

    @property
    def has_work(self) -> bool:
        """Whether another step has work to do."""
        return self.scheduler.has_work

    def step(self) -> list[tuple[int, StepEvent]]:
        """Run one step: schedule, score, commit, draft. Return (number, event) of every sequence with new tokens."""
        step = self.next_step()
        if step is None:
            assert not self.has_work, "sequences are alive, nothing is in flight, and none can continue"
            return []
        self.take(step, self.target.step(step))
        return self.settle()

    def next_step(self, n_in_flight: int = 0) -> Step | None:
        """Return the target's next step while ``n_in_flight`` are unanswered; None: nothing now."""
        step = self.scheduler.next_step(self._next_step, n_in_flight)
        if step is not None:
            self._next_step += 1
        return step

    def take(self, step: Step, result: StepResult) -> None:
        """Commit a step's answer and draft, so that the next step can be sent; ``settle`` does the rest."""
        assert self._taken is None, "settle() has not followed the last take()"
        self._took_at = self._clock()
        sequences = [self._sequences[work.seq] for work in step.work]
        commits = self.scheduler.commit(step, result, sequences)
        draft_round = start_round(commits, self.scheduler)
        run_round(draft_round, self.pool, self.scheduler)
        self._taken = commits, draft_round

    def settle(self, seconds: float | None = None) -> list[tuple[int, StepEvent]]:
        """Do the work after ``take`` that the next step does not need; return (number, event) of its sequences.

        ``seconds`` is the host's time between the answer and the next send; None: all time since ``take`` began.
        """
        if self._taken is None:
            return []
        seconds = self._clock() - self._took_at if seconds is None else seconds
        (commits, draft_round), self._taken = self._taken, None
        events = self.scheduler.build_events(commits)
        if draft_round.must_settle:
            for seq in self.pool.settle(draft_round.resting_outcomes, seconds):
                if seq in self._sequences:
                    self._sequences[seq].rests = False
        for sequence in draft_round.finished:
            self._sequences.pop(sequence.seq, None)
            self.pool.end(sequence.seq)
        return [(sequence.seq, event) for sequence, event in events]

    def run(self, requests: Items[Request], batch_size: int) -> Iterator[tuple[int, Completion]]:
        """Complete requests, ``batch_size`` at a time; yield (index, completion) as they finish."""
        todo = list(enumerate(requests))[::-1]
        running: dict[int, int] = {}
        events: dict[int, list[StepEvent]] = {}
        while todo or running:
            while todo and len(running) < batch_size:
                index, request = todo.pop()
                seq = self.submit(request)
                running[seq], events[seq] = index, []
            for seq, event in self.step():
                events[seq].append(event)
                if event.finish_reason is not None:
                    yield running.pop(seq), _completion(events.pop(seq))
        while self.has_work:  # the target drops the last sequences
            self.step()

    def complete(self, request: Request) -> Completion:
        ((_, completion),) = self.run([request], 1)
        return completion


def _completion(events: Items[StepEvent]) -> Completion:
    last = events[-1]
    assert last.finish_reason is not None
    assert last.stats is not None
    tokens = [token for event in events for token in event.token_ids]
    logprobs = None if events[0].logprobs is None else [entry for event in events for entry in event.logprobs or ()]
    return Completion(tokens, last.finish_reason, last.stats, logprobs, events[0].prompt_logprobs)
