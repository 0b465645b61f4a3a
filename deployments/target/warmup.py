"""Whether a pipeline that has just come up passes a step on: its links are built by the first one to connect."""

from __future__ import annotations

import asyncio

from deployments.pipeline.connection import Endpoints, Pipeline
from engine.errors import TargetLostError
from engine.step import Step

LINKS_S = 120.0  # for all links of a pipeline to be built; NCCL alone may take half of it


async def pass_a_step(endpoints: Endpoints) -> None:
    """Send an empty step through all stages of a pipeline that nobody else uses yet.

    Raises:
        TargetLostError: it did not come out at the other end.
    """
    try:
        async with asyncio.timeout(LINKS_S):
            pipeline = await Pipeline.connect(endpoints)
            try:
                pipeline.send(Step(0, []))
                result = await pipeline.receive()
            finally:
                pipeline.close()
    except TimeoutError as error:
        raise TargetLostError(f"no link between two stages was built within {LINKS_S:g} s") from error
    if result.error:
        raise TargetLostError(f"an empty step failed: {result.error}")
