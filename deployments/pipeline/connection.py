"""The router's end of a pipeline: steps go to the first stage, results come from the last."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from deployments.channels.async_channel import AsyncChannel
from deployments.channels.handshake import RESULTS, STEPS
from deployments.options import RouterOptions
from deployments.pipeline.endpoints import Endpoints
from deployments.pipeline.frames import encode_step_frame
from deployments.pipeline.leadership import PipelineInUseError
from deployments.pipeline.step_deadline import TIMES_COLD, ReportHang, send_hang_report
from engine.errors import TargetLostError
from engine.step import Step, StepResult, decode_result
from engine.step_cost import StepCosts, read_costs, write_costs
from engine.target_model.info import TargetInfo
from engine.target_model.step_timing import measurement

logger = logging.getLogger(__name__)

MEASURE_ATTEMPTS = 3  # pipelines on which the target's steps are timed at start, until one survives
STEP_DEADLINE = RouterOptions().step_deadline  # seconds


class TargetHungError(TargetLostError):
    """A step was not answered in time, though the connections are open."""


class Pipeline:
    """A connected pipeline. Its stages start empty: a router prefills every sequence again after a new connection."""

    def __init__(self, endpoints: Endpoints, steps: AsyncChannel, results: AsyncChannel) -> None:
        self.endpoints = endpoints
        self._steps = steps
        self._results = results
        self._broken = ""  # why steps no longer arrive
        self._watch = asyncio.get_running_loop().create_task(self._watch_steps())

    async def _watch_steps(self) -> None:
        """Make ``receive`` fail once the channel of the steps ends; the first stage never sends on it.

        The last stage may not notice the loss, if a stage in between never connected to it.
        """
        try:
            await self._steps.receive()
            self._broken = "the first stage sent something on the channel of the steps"
        except TargetLostError as error:
            self._broken = f"the first stage is lost: {error}"
        self._results.close()

    @classmethod
    async def connect(cls, endpoints: Endpoints) -> Pipeline:
        """Connect both ends; raises TargetLostError when a stage does not answer."""
        results = await AsyncChannel.connect(endpoints.last, endpoints.secret, RESULTS)
        try:
            steps = await AsyncChannel.connect(endpoints.first, endpoints.secret, STEPS)
        except BaseException:  # cancellation too
            results.close()
            raise
        return cls(endpoints, steps, results)

    def send(self, step: Step) -> None:
        """Send a step; never waits and never fails: a lost pipeline shows in ``receive``."""
        self._steps.send(encode_step_frame(step))

    async def receive(self) -> StepResult:
        """The next result; raises TargetLostError when the pipeline is lost."""
        try:
            return decode_result(await self._results.receive())
        except TargetLostError as error:
            raise TargetLostError(self._broken or str(error)) from error
        except msgspec.DecodeError as error:
            raise TargetLostError(f"the target sent a malformed result: {error}") from error

    async def ask(self, step: Step, limit: float) -> StepResult:
        """Send a step through an idle pipeline and wait for its answer.

        Raises:
            TargetHungError: there is none within ``limit`` seconds.
            TargetLostError: the pipeline is lost, failed the step, or answered a step with another number.
        """
        self.send(step)
        try:
            async with asyncio.timeout(limit):
                result = await self.receive()
        except TimeoutError as error:
            raise TargetHungError(f"step {step.step_id} of an idle pipeline was not answered in {limit:g} s") from error
        if result.error:
            raise TargetLostError(f"the target failed step {step.step_id}: {result.error}")
        if result.step_id != step.step_id:
            raise TargetLostError(f"the target answered step {result.step_id} instead of {step.step_id}")
        return result

    def close(self) -> None:
        """Drop both connections."""
        self._watch.cancel()
        self._steps.close()
        self._results.close()


async def measure_pipeline(
    pipeline: Pipeline, info: TargetInfo, limit: float = STEP_DEADLINE * TIMES_COLD
) -> StepCosts:
    """Measure step times as the router sees them, channels included. The pipeline must be idle and is empty afterwards.

    Raises:
        TargetHungError: a step was not answered within ``limit`` seconds.
        TargetLostError: the pipeline is lost, or failed a step.
    """
    steps = measurement(info)
    step = next(steps)
    while True:
        began = time.perf_counter()
        await pipeline.ask(step, limit)
        try:
            step = steps.send(time.perf_counter() - began)
        except StopIteration as done:
            costs: StepCosts = done.value
            return costs


async def step_costs(
    connect: Callable[[], Awaitable[Pipeline]],
    file: str,
    info: TargetInfo,
    deadline: float = STEP_DEADLINE,
    report_hang: ReportHang | None = None,
) -> StepCosts | None:
    """Step times of a target on this machine: from an earlier start, or measured now on an otherwise idle pipeline.

    None if every attempt fails: ``auto`` then counts nodes as free. On a pipeline that another router uses, nothing is
    measured: that router's step times are returned.

    Args:
        connect: waits for a pipeline; raises PipelineInUseError if another router uses it.
        file: keeps the times between starts; "": none.
        info: of the target.
        deadline: seconds a step may take; on a pipeline that is being measured ``TIMES_COLD`` times as long.
        report_hang: called for a pipeline that does not answer in time.
    """
    known = read_costs(Path(file)) if file else None
    if known is not None:
        return known
    for _ in range(MEASURE_ATTEMPTS):
        try:
            pipeline = await connect()
        except PipelineInUseError as led:
            return led.costs
        try:
            costs = await measure_pipeline(pipeline, info, deadline * TIMES_COLD)
        except TargetHungError as error:
            logger.warning("the pipeline hung while it was measured: %s", error)
            await send_hang_report(report_hang, "the pipeline", str(error))
            continue
        except TargetLostError as error:
            logger.warning("the pipeline was lost while it was measured: %s", error)
            continue
        finally:
            pipeline.close()
        if file:
            write_costs(Path(file), costs)
        return costs
    return None
