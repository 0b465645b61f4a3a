"""A lane's connection to its pipeline: connects, probes, drops it when a step is overdue, and reconnects."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from deployments.pipeline.connection import Pipeline, TargetHungError
from deployments.pipeline.step_deadline import ReportHang, StepDeadlines, send_hang_report
from engine.errors import TargetLostError
from engine.step import Step, StepResult
from engine.step_cost import StepCosts

logger = logging.getLogger(__name__)

RECONNECT_S = 0.1  # pause between two attempts to reach a pipeline
CHECK_S = 0.25  # between two checks for overdue steps


@dataclass(frozen=True, slots=True)
class TargetClient:
    """Connects a lane to its pipelines."""

    name: str  # in metrics, logs and health
    connect: Callable[[], Awaitable[Pipeline]]  # waits until a pipeline is up; called again after a loss
    report_hang: ReportHang | None = None  # lets the target check its stages for a hang
    hold: Callable[[], Awaitable[None]] | None = None  # requests a pipeline until cancelled; None: there always is one


class LaneConnection:
    """Keeps a lane connected to one pipeline at a time.

    Args:
        target: connects to pipelines.
        deadline: seconds a step may take before its pipeline counts as lost.
        costs: step times of the target; None: not measured.
        on_up: called when a pipeline is connected and has answered a probe.
        on_result: called with every result; an exception drops the pipeline.
        on_loss: called when a pipeline that was up is lost.
    """

    def __init__(
        self,
        target: TargetClient,
        deadline: float,
        costs: StepCosts | None,
        on_up: Callable[[], None],
        on_result: Callable[[StepResult], None],
        on_loss: Callable[[], None],
    ) -> None:
        self.pipeline: Pipeline | None = None
        self.next_step_id = 0
        self._target = target
        self._deadline = deadline
        self._deadlines = StepDeadlines(deadline, costs)
        self._on_up = on_up
        self._on_result = on_result
        self._on_loss = on_loss
        self._overdue = ""  # why the pipeline was dropped; "": it was not
        self._is_handing_over = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Connect, and reconnect after every loss; needs a running event loop."""
        self._spawn(self._run())
        self._spawn(self._check_deadlines())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)

    def hand_over(self) -> None:
        """Stop reconnecting after a loss: the router is being replaced, and the next one takes the pipeline."""
        self._is_handing_over = True

    async def close(self) -> None:
        """Disconnect and stop reconnecting, until ``start``."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.pipeline is not None:
            self.pipeline.close()
            self.pipeline = None

    def send(self, step: Step) -> None:
        """Send a step with the id ``next_step_id``; needs a pipeline."""
        assert self.pipeline is not None
        self.next_step_id += 1
        self._deadlines.sent(step, time.monotonic())
        self.pipeline.send(step)

    async def _run(self) -> None:
        while True:
            try:
                pipeline = await self._connect()
                while True:
                    result = await pipeline.receive()
                    self._deadlines.answered(result.step_id, time.monotonic())
                    self._on_result(result)
            except TargetLostError as error:
                logger.warning("the pipeline of %s is lost: %s", self._target.name, self._overdue or error)
            except Exception:  # a bug; live requests survive it
                logger.exception("the step loop of %s failed; it restarts with a new pipeline", self._target.name)
            if self.pipeline is not None:
                self.pipeline.close()
                self.pipeline = None
                self._on_loss()
            if self._is_handing_over:
                return
            await asyncio.sleep(RECONNECT_S)

    async def _connect(self) -> Pipeline:
        # Step ids are unique to a connection, so that no result of an earlier one is mistaken for its own.
        self.next_step_id += 1 + secrets.randbits(48)
        pipeline = await self._target.connect()
        try:
            await self._probe(pipeline)
        except BaseException:  # includes cancellation
            pipeline.close()
            raise
        self.pipeline = pipeline
        self._overdue = ""
        self._deadlines.restart(time.monotonic())
        self._on_up()
        return pipeline

    async def _probe(self, pipeline: Pipeline) -> None:
        """Wait for the result of a step without work.

        The router is connected to the first and last stage only. The probe finds a pipeline that hangs from the start
        before a sequence is in flight, so the hang counts against no sequence.
        """
        step = Step(self.next_step_id, [])
        self.next_step_id += 1
        try:
            await pipeline.ask(step, self._deadlines.cold)
        except TargetHungError as error:
            self._spawn(send_hang_report(self._target.report_hang, self._target.name, str(error)))
            raise

    async def _check_deadlines(self) -> None:
        """Drop the pipeline once a step is overdue."""
        pause = min(CHECK_S, self._deadline / 4)
        while True:
            began = time.monotonic()
            await asyncio.sleep(pause)
            late = time.monotonic() - began - pause
            if late > pause:  # this process was held up, not the pipeline
                self._deadlines.excuse(late, time.monotonic())
            reason = self._deadlines.overdue(time.monotonic())
            if self.pipeline is not None and reason and not self._overdue:
                self._overdue = reason
                self._deadlines.reported()
                self.pipeline.close()  # ``_run`` sees the loss
                self._spawn(send_hang_report(self._target.report_hang, self._target.name, reason))
