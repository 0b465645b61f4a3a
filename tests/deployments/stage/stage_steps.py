"""Steps for stages without a router."""

from __future__ import annotations

from typing import Any

from deployments.pipeline.connection import Pipeline
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.step import SequenceStart, Step, Work


def first_step(number: int = 0) -> Step:
    """A prompt of three tokens."""
    start = SequenceStart(number, SamplingParams(max_tokens=5), 3, Needs())
    return Step(number, [Work(number, 0, [5, 6, 7], new_blocks=[number])], [start])


async def connected(served: Any) -> Pipeline:
    """The stages, taken from the router."""
    await served.router.close()
    pipeline: Pipeline = await served.connect()
    return pipeline
