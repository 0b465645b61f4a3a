"""The router's end of a pipeline: steps go to the first stage, results come from the last."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from deployments.channel import AsyncChannel
from deployments.frames import encode_frame
from deployments.stage_worker import RESULTS, STEPS
from engine.errors import TargetLostError
from engine.step import Step, StepResult, decode_result
from engine.step_cost import StepCosts, read_costs, write_costs
from engine.step_timing import measurement
from engine.target import TargetInfo

logger = logging.getLogger(__name__)

MEASURE_ATTEMPTS = 3  # to time the target's steps at start


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a pipeline listens."""

    first: str  # address of the first stage: steps go in here
    last: str  # address of the last stage: results come out here
    secret: bytes
    info: TargetInfo
    generation: int = 0  # grows when stages were replaced


class Pipeline:
    """A connected pipeline. Its stages start empty: whoever connects anew has to prefill again."""

    def __init__(self, endpoints: Endpoints, steps: AsyncChannel, results: AsyncChannel) -> None:
        self.endpoints = endpoints
        self._steps = steps
        self._results = results

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
        """Hand a step over; never waits, and never fails: a lost pipeline shows in ``receive``."""
        self._steps.send(encode_frame(step, None))

    async def receive(self) -> StepResult:
        """The next result; raises TargetLostError when the pipeline is gone."""
        try:
            return decode_result(await self._results.receive())
        except msgspec.DecodeError as error:
            raise TargetLostError(f"the target sent what is no result: {error}") from error

    def close(self) -> None:
        """Drop both connections."""
        self._steps.close()
        self._results.close()


async def measure_pipeline(pipeline: Pipeline, info: TargetInfo) -> StepCosts:
    """Step times as the router sees them, channels included; the pipeline must be idle and is empty afterwards.

    Raises:
        TargetLostError: the pipeline is gone, or failed a step.
    """
    steps = measurement(info)
    step = next(steps)
    while True:
        began = time.perf_counter()
        pipeline.send(step)
        result = await pipeline.receive()
        if result.error:
            raise TargetLostError(f"the target failed a step that was to be timed: {result.error}")
        try:
            step = steps.send(time.perf_counter() - began)
        except StopIteration as done:
            costs: StepCosts = done.value
            return costs


async def step_costs(connect: Callable[[], Awaitable[Pipeline]], file: str, info: TargetInfo) -> StepCosts | None:
    """Step times of a target on this machine: from an earlier start, or measured now on a pipeline nobody else uses.

    None for a target that fails or dies of it every time: ``auto`` then counts nodes as free.
    """
    known = read_costs(Path(file)) if file else None
    if known is not None:
        return known
    for _ in range(MEASURE_ATTEMPTS):
        pipeline = await connect()
        try:
            costs = await measure_pipeline(pipeline, info)
        except TargetLostError as error:
            logger.warning("the pipeline was lost while it was measured: %s", error)
            continue
        finally:
            pipeline.close()
        if file:
            write_costs(Path(file), costs)
        return costs
    return None
