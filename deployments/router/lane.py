"""One pipeline with its own scheduler: connects, keeps every stage busy, takes answers in, notices when it is lost.

Knows nothing of clients, of speculators or of other lanes: its host (the router) is told what happened. Answers are
taken in and the next step is sent before anybody's stream hears of it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Collection, Coroutine
from typing import Any

from deployments.options import RouterOptions
from deployments.pipeline.connection import Pipeline, TargetHungError
from deployments.pipeline.hang_report import report
from deployments.pipeline.step_deadline import StepWatch
from deployments.router.lane_observer import LaneObserver, TargetClient
from deployments.router.poison_requests import MAX_LOSSES, Losses, PoisonRequests
from deployments.router.service_rate import ServiceRate
from engine.errors import TargetLostError
from engine.scheduling.commit import Progress
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, State
from engine.step import Step, StepResult
from engine.step_cost import StepCosts
from engine.target.info import TargetInfo

logger = logging.getLogger(__name__)

RECONNECT_S = 0.1  # pause between two attempts to reach a pipeline
LOOK_S = 0.25  # between two looks at the steps in flight


class Lane:
    """Serves one pipeline at a time.

    Args:
        target: where it comes from.
        info: of the target; a replacement must be of the same kind.
        options: of the router.
        costs: step times of the target; None: not measured.
        observer: is told what happens.
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
        self.scheduler = Scheduler(info, options.scheduler, costs)
        self.poison_requests = PoisonRequests(self.scheduler)
        self.service_rate = ServiceRate()
        self.pipeline: Pipeline | None = None
        self.n_lost = 0
        self._lost_at: float | None = None  # until the first answer after a loss
        self._options = options
        self._observer = observer
        self._watch = StepWatch(options.step_deadline, costs)
        self._in_flight: dict[int, tuple[Step, list[Sequence]]] = {}
        self._next_step = 0
        self._suspicion = ""
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve; needs a running event loop."""
        self._spawn(self._run())
        self._spawn(self._look())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop serving."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.pipeline is not None:
            self.pipeline.close()
            self.pipeline = None
            await asyncio.sleep(0)  # its task ends

    @property
    def is_up(self) -> bool:
        """Whether a pipeline is connected, and has answered."""
        return self.pipeline is not None

    @property
    def n_in_flight(self) -> int:
        """Steps sent and not answered."""
        return len(self._in_flight)

    # -- sequences -----------------------------------------------------------------------------------------------

    @property
    def sequences(self) -> Collection[Sequence]:
        """All that are not finished, held back or not; for reading at once."""
        live, held = self.scheduler.sequences, self.poison_requests.held
        return [*live, *held] if held else live

    @property
    def n_waiting(self) -> int:
        """Sequences that own no blocks."""
        return self.scheduler.n_waiting + len(self.poison_requests.held)

    @property
    def load(self) -> float:
        """Tokens of work that are queued or running: still to be read, and still to be written as far as is known."""
        return sum(map(self.work_of, self.sequences))

    def work_of(self, sequence: Sequence) -> float:
        """Tokens that a sequence still has to have read and written."""
        return max(0, sequence.n_prefill - sequence.n_cached) + self.service_rate.expected_output(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Forget a sequence."""
        self.poison_requests.forget(sequence)
        self.scheduler.cancel(sequence)
        self.service_rate.forget(sequence.seq)

    def withdraw(self, sequence: Sequence) -> Losses | None:
        """Give a sequence that is in no step away, and what is held against it."""
        self.service_rate.forget(sequence.seq)
        return self.poison_requests.withdraw(sequence)

    def figures(self) -> dict[str, int | bool]:
        """For health checks."""
        return {
            "up": self.is_up,
            "running": self.scheduler.n_running,
            "waiting": self.n_waiting,
            "free_blocks": self.scheduler.blocks.n_free,
            "steps_in_flight": self.n_in_flight,
            "pipelines_lost": self.n_lost,
        }

    # -- the step loop -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._connect()
                assert self.pipeline is not None
                while True:
                    self._absorb(await self.pipeline.receive())
            except TargetLostError as error:
                reason = self._suspicion or str(error)
                logger.warning("%s lost with %d steps in flight: %s", self.target.name, self.n_in_flight, reason)
            except Exception:  # a bug, but the requests that are alive had no part in it
                logger.exception("the step loop of %s failed; starting over with a clean pipeline", self.target.name)
            self._lose_pipeline()
            await asyncio.sleep(RECONNECT_S)

    async def _connect(self) -> None:
        # Numbers of their own for each connection: an answer to somebody else's step must not pass for one.
        self._next_step += 1 + secrets.randbits(48)
        pipeline = await self.target.connect()
        try:
            await self._probe(pipeline)
        except BaseException:  # cancellation too
            pipeline.close()
            raise
        self.pipeline = pipeline
        self._suspicion = ""
        self._watch.restart(time.monotonic())
        self._observer.came_up(self)
        self.dispatch()

    async def _probe(self, pipeline: Pipeline) -> None:
        """A step without work must come through first: a connection alone says nothing of the stages between, and
        nobody whose sequence is not in flight can be blamed for a pipeline that hangs already."""
        step = Step(self._next_step, [])
        self._next_step += 1
        try:
            await pipeline.ask(step, self._watch.cold)
        except TargetHungError as error:
            self._spawn(report(self.target.suspect, self.target.name, str(error)))
            raise

    def _lose_pipeline(self) -> None:
        """Live sequences go back to the queue; the next pipeline prefills them from prompt and output.

        Except one that the target has not survived again and again, the last time alone.
        """
        if self.pipeline is None:
            return
        self.pipeline.close()
        self.pipeline = None
        self.n_lost += 1
        if self._lost_at is None:
            self._lost_at = time.monotonic()
        involved = {sequence.seq: sequence for _, sequences in self._in_flight.values() for sequence in sequences}
        poison = self.poison_requests.lost(involved.values())
        self._in_flight.clear()
        n_running = self.scheduler.n_running
        self.scheduler.lose_target()
        self.service_rate.forget_all()
        self._observer.went_down(self, n_running)
        self._fail(poison, f"the target was lost {MAX_LOSSES} times while it ran this request, the last time alone")

    def dispatch(self) -> None:
        """Keep every stage busy: send steps while the scheduler has any to send now."""
        while self.pipeline is not None and self.poison_requests.may_send():
            step = self.scheduler.next_step(self._next_step, len(self._in_flight))
            if step is None:
                return
            self._next_step += 1
            self._in_flight[step.step_id] = (step, [self.scheduler.find(work.seq) for work in step.work])
            now = time.monotonic()
            self._watch.sent(step, now)
            self.service_rate.sent(step, now)
            self.pipeline.send(step)

    def _absorb(self, result: StepResult) -> None:
        """One result: commit, draft, send the next step, and only then tell the world."""
        sent = self._in_flight.pop(result.step_id, None)
        if sent is None:
            raise TargetLostError(f"the target answered step {result.step_id}, which was not sent")
        step, sequences = sent
        now = time.monotonic()
        self._watch.answered(step.step_id, now)
        if result.error:
            self._fail(sequences, result.error)
            self.dispatch()
            return
        try:
            progress = self.scheduler.commit(step, result, sequences)
            for p in progress:
                self.poison_requests.answered(p.sequence)
            self._observer.draft(self, progress)
        except Exception:
            self._fail(sequences, "the step's answer could not be taken in")
            raise
        self.dispatch()
        self._measure(step, progress, now)
        self._observer.publish(self, result, progress)

    def _measure(self, step: Step, progress: list[Progress], now: float) -> None:
        if self._lost_at is not None:
            self._observer.recovered(self, now - self._lost_at)
            self._lost_at = None
        for work, p in zip(step.work, progress, strict=True):
            n_written = 0 if p.event is None else len(p.event.token_ids)
            self.service_rate.answered(work.seq, len(work.tokens) if work.tree is None else 0, n_written, now)
            if p.sequence.state is State.FINISHED:
                self.service_rate.forget(work.seq)
                if p.event is not None:
                    self.service_rate.finished(p.sequence)

    def _fail(self, sequences: list[Sequence], error: str) -> None:
        """A step the target could not run takes its own sequences with it, no others."""
        for sequence in sequences:
            self.poison_requests.forget(sequence)
            self.scheduler.fail(sequence)
            self.service_rate.forget(sequence.seq)
            self._observer.fail(sequence, error)

    # -- a pipeline that hangs -----------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Drop the pipeline once a step is overdue."""
        pause = min(LOOK_S, self._options.step_deadline / 4)
        while True:
            began = time.monotonic()
            await asyncio.sleep(pause)
            late = time.monotonic() - began - pause
            if late > pause:  # this process was held up: that is not the pipeline's fault
                self._watch.excuse(late, time.monotonic())
            reason = self._watch.overdue(time.monotonic())
            if self.pipeline is not None and reason and not self._suspicion:
                self._suspicion = reason
                self._watch.suspected()
                self.pipeline.close()  # ``_run`` sees it as lost
                self._spawn(report(self.target.suspect, self.target.name, reason))
