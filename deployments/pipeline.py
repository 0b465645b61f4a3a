"""The router's end of a pipeline: steps go to the first stage, results come from the last."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from deployments.channel import AsyncChannel
from deployments.frames import encode_frame
from deployments.stage_worker import RESULTS, STEPS
from engine.errors import TargetLostError
from engine.step import Step, StepResult, decode_result
from engine.step_cost import StepCosts
from engine.step_timing import measurement
from engine.target import TargetInfo


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a pipeline listens."""

    first: str  # address of the first stage: steps go in here
    last: str  # address of the last stage: results come out here
    secret: bytes
    info: TargetInfo


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
