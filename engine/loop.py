"""The offline decode loop: scheduler, target and speculators in one thread. ``spectra generate`` and tests run it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine.events import RequestStats, StepEvent, TokenLogprob
from engine.protocol import DraftPool, Needs
from engine.sampling.params import SamplingParams
from engine.scheduling.drafting import AUTOREGRESSIVE, apply_drafts, take_turn
from engine.scheduling.scheduler import Scheduler, SchedulerOptions
from engine.scheduling.sequence import Sequence
from engine.scheduling.stats import StatsCounter
from engine.target.info import Target


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to complete."""

    prompt: list[int]
    params: SamplingParams
    method: str = AUTOREGRESSIVE
    max_nodes: int = 64
    priority: int = 0
    namespace: str = ""
    emitted: Items[int] = ()  # beginning of the output, known already: the text goes on behind it
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of a job."""

    token_ids: list[int]
    finish_reason: str
    stats: RequestStats
    logprobs: list[TokenLogprob] | None


class Engine:
    """Runs jobs on a target. Not thread-safe."""

    def __init__(self, target: Target, pool: DraftPool, options: SchedulerOptions | None = None) -> None:
        self.target = target
        self.pool = pool
        self.scheduler = Scheduler(target.info, options)
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 0
        self._next_step = 0

    def submit(self, job: Job) -> int:
        """Queue a job; returns its number.

        Raises:
            RequestError: the job can never be served (its subclasses say why).
            OverloadedError: the queue is full.
        """
        needs = Needs() if job.method == AUTOREGRESSIVE else self.pool.needs(job.method)
        seq = self._next_id
        sequence = Sequence(
            seq,
            [*job.prompt, *job.emitted],
            len(job.prompt),
            job.params,
            StatsCounter(len(job.prompt)),
            job.method,
            job.max_nodes,
            job.priority,
            needs,
            namespace=job.namespace,
            tenant=job.tenant,
        )
        self.scheduler.submit(sequence)
        self._next_id += 1
        self._sequences[seq] = sequence
        if job.method != AUTOREGRESSIVE:
            self.pool.begin(
                seq, sequence.tokens, job.params, job.method, self.target.info.spec.vocab_size, job.namespace
            )
        return seq

    def cancel(self, seq: int) -> None:
        """Stop a job now; harmless when it is done."""
        sequence = self._sequences.pop(seq, None)
        if sequence is not None:
            self.scheduler.cancel(sequence)
            self.pool.end(seq)

    @property
    def has_work(self) -> bool:
        """Whether another step would do something."""
        return self.scheduler.has_work

    def step(self) -> list[tuple[int, StepEvent]]:
        """One target step: schedule, score, commit, draft. Returns what every sequence emitted."""
        step = self.scheduler.next_step(self._next_step)
        if step is None:
            assert not self.has_work, "sequences are alive, nothing is in flight, and none can go on"
            return []
        self._next_step += 1
        result = self.target.step(step)
        sequences = [self._sequences[work.seq] for work in step.work]
        progress = self.scheduler.commit(step, result, sequences)
        turn = take_turn(progress, self.scheduler)
        for sequence in turn.finished:
            self._sequences.pop(sequence.seq, None)
            self.pool.end(sequence.seq)
        if not turn.is_empty:
            apply_drafts(turn, self.pool.advance(turn.outcomes, turn.budgets), self.scheduler)
        return [(p.sequence.seq, p.event) for p in progress if p.event is not None]

    def run(self, jobs: Items[Job], batch_size: int) -> Iterator[tuple[int, Completion]]:
        """Complete jobs, ``batch_size`` at a time; yields (index, completion) as they finish."""
        todo = list(enumerate(jobs))[::-1]
        running: dict[int, int] = {}
        tokens: dict[int, list[int]] = {}
        logprobs: dict[int, list[TokenLogprob]] = {}
        while todo or running:
            while todo and len(running) < batch_size:
                index, job = todo.pop()
                seq = self.submit(job)
                running[seq], tokens[seq], logprobs[seq] = index, [], []
            for seq, event in self.step():
                tokens[seq] += event.token_ids
                logprobs[seq] += event.logprobs or []
                if event.finish_reason is not None:
                    assert event.stats is not None
                    ids = tokens.pop(seq)
                    kept = logprobs.pop(seq)
                    wanted = jobs[running[seq]].params.logprobs is not None
                    yield running.pop(seq), Completion(ids, event.finish_reason, event.stats, kept if wanted else None)
        while self.has_work:  # tell the target to forget the last ones
            self.step()

    def complete(self, job: Job) -> Completion:
        """Run one job to its end."""
        return next(iter([completion for _, completion in self.run([job], 1)]))
