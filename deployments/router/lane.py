"""A lane: one pipeline with its own scheduler. It sends steps, commits results and survives the pipeline's loss.

A lane knows no clients, speculators or other lanes; it calls its observer, the router. It commits a result and sends
the next step before any stream gets its events. Its scheduler asks ``BatchingPolicy`` which sequences are in a step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Protocol

from deployments.options import RouterOptions
from deployments.pipeline.stage_reports import LoadReport
from deployments.router.lane_connection import LaneConnection, TargetClient
from deployments.router.poison_requests import MAX_LOSSES, Losses, PoisonRequests
from deployments.router.service_rate import ServiceRate
from engine.errors import TargetLostError
from engine.events import StepEvent
from engine.scheduling.batching_policy import BatchingPolicy
from engine.scheduling.commit import Commit
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, SequenceState
from engine.step import Step, StepResult
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo

logger = logging.getLogger(__name__)


class LaneObserver(Protocol):
    """Receives a lane's events."""

    def on_commit(self, lane: Lane, commits: list[Commit]) -> None:
        """A step was committed; speculators may learn what the next drafts need, and draft."""

    def on_sent(self, lane: Lane, step: Step, result: StepResult, events: list[tuple[Sequence, StepEvent]]) -> None:
        """The next step after a committed one was sent; streams may get its events, and speculators may settle."""

    def on_failure(self, sequence: Sequence, error: str) -> None:
        """The target could not run a step with this sequence."""

    def on_up(self, lane: Lane) -> None:
        """The lane's pipeline is connected and has answered."""

    def on_down(self, lane: Lane, n_running: int) -> None:
        """The lane's pipeline is lost; ``n_running`` sequences will be prefilled again."""

    def on_recovery(self, lane: Lane, seconds: float) -> None:
        """The first result arrived ``seconds`` after the lane's last pipeline was lost."""


class Lane:
    """Serves its sequences on one pipeline at a time.

    Args:
        target: connects to pipelines.
        info: of the target; a replacement pipeline must have the same.
        options: of the router.
        costs: step times of the target; None: not measured.
        observer: receives the lane's events.
    """

    def __init__(
        self,
        target: TargetClient,
        info: TargetInfo,
        options: RouterOptions,
        costs: StepCosts | None,
        observer: LaneObserver,
    ) -> None:
        self.target = target
        self.scheduler = Scheduler(BatchingPolicy(info, options.scheduler, costs))
        self.poison_requests = PoisonRequests(self.scheduler)
        self.service_rate = ServiceRate()
        self.n_lost = 0  # pipelines
        self.is_enabled = True  # False: the pipeline is being removed, or there is none
        self.connection = LaneConnection(
            target, options.step_deadline, costs, self._on_up, self._on_result, self._on_loss
        )
        self._lost_at: float | None = None  # until the first result after a loss
        self._observer = observer
        self._in_flight: dict[int, tuple[Step, list[Sequence]]] = {}  # by step number

    def start(self) -> None:
        """Start serving; needs a running event loop."""
        self.connection.start()

    async def close(self) -> None:
        """Stop serving for good."""
        await self.connection.close()
        await asyncio.sleep(0)  # lets the pipeline's task end

    async def stop(self) -> None:
        """Disconnect until the next ``start``; live sequences return to the queue, and it counts as no loss."""
        await self.connection.close()
        self._lost_at = None
        self._requeue()

    @property
    def is_up(self) -> bool:
        """Whether a pipeline is connected and has answered."""
        return self.connection.pipeline is not None

    @property
    def load_report(self) -> LoadReport:
        """Report of the pipeline's start; empty without a pipeline."""
        pipeline = self.connection.pipeline
        return LoadReport() if pipeline is None else pipeline.endpoints.load

    @property
    def accepts_requests(self) -> bool:
        """Whether new requests may be sent here."""
        return self.is_up and self.is_enabled

    @property
    def n_in_flight(self) -> int:
        """Steps sent and not answered."""
        return len(self._in_flight)

    @property
    def sequences(self) -> Collection[Sequence]:
        """All unfinished sequences, including those held back; a view, valid until the next change."""
        live, held = self.scheduler.sequences, self.poison_requests.held
        return [*live, *held] if held else live

    @property
    def n_waiting(self) -> int:
        """Sequences that own no blocks."""
        return self.scheduler.n_waiting + len(self.poison_requests.held)

    @property
    def load(self) -> float:
        """Work of all sequences, in tokens."""
        return sum(map(self.work_of, self.sequences))

    def work_of(self, sequence: Sequence) -> float:
        """Work of a sequence, in tokens: those still to be prefilled, and the expected rest of the output."""
        return max(0, sequence.n_prefill - sequence.n_cached) + self.service_rate.expected_output(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Drop a sequence and free its KV blocks."""
        self.poison_requests.forget(sequence)
        self.scheduler.cancel(sequence)
        self.service_rate.forget(sequence.seq)

    def withdraw(self, sequence: Sequence) -> Losses | None:
        """Remove a sequence that is not in flight, for another lane; returns the pipeline losses counted against it."""
        self.service_rate.forget(sequence.seq)
        return self.poison_requests.withdraw(sequence)

    def figures(self) -> dict[str, int | bool]:
        """Figures for health checks."""
        return {
            "wanted": self.is_enabled,
            "up": self.is_up,
            "running": self.scheduler.n_running,
            "waiting": self.n_waiting,
            "free_blocks": self.scheduler.blocks.n_free,
            "steps_in_flight": self.n_in_flight,
            "pipelines_lost": self.n_lost,
        }

    def dispatch(self) -> None:
        """Send steps until the scheduler has none to send now, so that every stage stays busy."""
        while self.is_up and self.poison_requests.may_send():
            step = self.scheduler.next_step(self.connection.next_step_id, len(self._in_flight))
            if step is None:
                return
            self._in_flight[step.step_id] = (step, [self.scheduler.find(work.seq) for work in step.work])
            self.connection.send(step)
            self.service_rate.on_sent(step, time.monotonic())

    def _on_up(self) -> None:
        self._observer.on_up(self)
        self.dispatch()

    def _on_result(self, result: StepResult) -> None:
        """Commit a result, start drafting, send the next step, and only then count, publish events and settle."""
        sent = self._in_flight.pop(result.step_id, None)
        if sent is None:
            raise TargetLostError(f"the target answered step {result.step_id}, which was not sent")
        step, sequences = sent
        now = time.monotonic()
        if result.error:
            self._fail(sequences, result.error)
            self.dispatch()
            return
        try:
            commits = self.scheduler.commit(step, result, sequences)
            if self.poison_requests.has_suspicions:  # before the send: it decides which sequences may be sent
                for commit in commits:
                    self.poison_requests.on_progress(commit.sequence)
            self._observer.on_commit(self, commits)
        except Exception:
            self._fail(sequences, "the result of the step could not be committed")
            raise
        self.dispatch()
        self._measure(step, commits, now)
        self._observer.on_sent(self, step, result, self.scheduler.build_events(commits))

    def _measure(self, step: Step, commits: list[Commit], now: float) -> None:
        if self._lost_at is not None:
            self._observer.on_recovery(self, now - self._lost_at)
            self._lost_at = None
        for work, commit in zip(step.work, commits, strict=True):
            n_read = len(work.tokens) if work.tree is None else 0
            self.service_rate.on_result(work.seq, n_read, commit.n_tokens, now)
            if commit.sequence.state is SequenceState.FINISHED:
                self.service_rate.forget(work.seq)
                if commit.finish_reason is not None:
                    self.service_rate.on_finish(commit.sequence)

    def _on_loss(self) -> None:
        """Fail poison requests and requeue all others; the next pipeline prefills them from prompt and output."""
        self.n_lost += 1
        if self._lost_at is None:
            self._lost_at = time.monotonic()
        in_flight = {sequence.seq: sequence for _, sequences in self._in_flight.values() for sequence in sequences}
        extra = {"requests": [sequence.request.request_id for sequence in in_flight.values()]}
        logger.warning("%s was lost with %d steps in flight", self.target.name, self.n_in_flight, extra=extra)
        poison = self.poison_requests.on_loss(in_flight.values())
        n_running = self.scheduler.n_running
        self._requeue()
        self._observer.on_down(self, n_running)
        self._fail(poison, f"the target was lost {MAX_LOSSES} times while it ran this request, the last time alone")

    def _requeue(self) -> None:
        self._in_flight.clear()
        self.scheduler.lose_target()
        self.service_rate.forget_all()

    def _fail(self, sequences: list[Sequence], error: str) -> None:
        for sequence in sequences:
            self.poison_requests.forget(sequence)
            self.scheduler.fail(sequence)
            self.service_rate.forget(sequence.seq)
            self._observer.on_failure(sequence, error)
