"""Checks of a whole pipeline: the warm-up, a step that must pass all stages, and the search for a stage that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from deployments.pipeline.connection import Pipeline
from deployments.pipeline.endpoints import Endpoints
from deployments.stage.actor import Pulse
from deployments.target_model.stage_handle import StageHandle
from engine.errors import ConfigError, TargetLostError
from engine.step import Step

MAX_WARM_UPS = 3  # attempts on a pipeline that has just come up
CONNECT_S = 120.0  # to build all transports of a pipeline; NCCL alone may take half of it
SUSPECT_S = 1.0  # a suspected stage must answer within this time, and be in one step for no longer


async def warm_up(endpoints: Endpoints, stages: Sequence[StageHandle]) -> None:
    """Send a step through all stages: the first connection builds the transports, so this shows whether that works.

    Raises:
        TargetLostError: no step came out at the other end.
        ConfigError: two stages share no transport.
    """
    for left in reversed(range(MAX_WARM_UPS)):
        try:
            await _pass_empty_step(endpoints)
            return
        except TargetLostError as error:
            for pulse in await _pulses(stages):
                if isinstance(pulse, ConfigError):
                    raise pulse from error
            if not left:
                raise TargetLostError(f"no step passes the stages; their logs say why: {error}") from error


async def _pass_empty_step(endpoints: Endpoints) -> None:
    try:
        async with asyncio.timeout(CONNECT_S):
            pipeline = await Pipeline.connect(endpoints)
            try:
                pipeline.send(Step(0, []))
                result = await pipeline.receive()
            finally:
                pipeline.close()
    except TimeoutError as error:
        raise TargetLostError(f"no transport between two stages was built within {CONNECT_S:g} s") from error
    if result.error:
        raise TargetLostError(f"an empty step failed: {result.error}")


async def mark_hung_stages_dead(stages: Sequence[StageHandle], reason: str, n_ranks: int = 1) -> None:
    """Mark the processes that do not answer as dead; if all answer, the stage that has been in one step for too long.

    Ranks of a stage wait for each other, so all ``n_ranks`` of them are suspected.
    """
    pulses = await _pulses(stages, SUSPECT_S)
    if any(isinstance(pulse, ConfigError) for pulse in pulses):
        return  # the stage's watch finds the same error, and raises it with its message
    silent = [stage for stage, pulse in zip(stages, pulses, strict=True) if isinstance(pulse, BaseException)]
    for stage in silent:
        stage.mark_dead(f"suspected ({reason}), it did not answer within {SUSPECT_S:g} s")
    busy = [0.0 if isinstance(pulse, BaseException) else pulse.busy for pulse in pulses]
    longest = max(busy)
    if not silent and longest > SUSPECT_S:
        leader = busy.index(longest) // n_ranks * n_ranks
        for stage in stages[leader : leader + n_ranks]:
            stage.mark_dead(f"suspected ({reason}), it has been in one step for {longest:.1f} s")


async def _pulses(stages: Sequence[StageHandle], within: float | None = None) -> list[Pulse | BaseException]:
    return await asyncio.gather(*(stage.pulse(within) for stage in stages), return_exceptions=True)
