"""The router's end of a pipeline: steps go to the first stage, results come from the last."""

from __future__ import annotations

from deployments.channel import AsyncChannel
from deployments.frames import encode_frame
from deployments.messages import Endpoints
from deployments.stage_worker import RESULTS, STEPS
from engine.errors import TargetLostError
from engine.step import Step, StepResult, decode_result


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
        except TargetLostError:
            results.close()
            raise
        return cls(endpoints, steps, results)

    def send(self, step: Step) -> None:
        """Hand a step over; never waits."""
        self._steps.send(encode_frame(step, None))

    async def receive(self) -> StepResult:
        """The next result; raises TargetLostError when the pipeline is gone."""
        return decode_result(await self._results.receive())

    def close(self) -> None:
        """Drop both connections."""
        self._steps.close()
        self._results.close()
