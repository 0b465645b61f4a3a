"""A pipeline is said to hang: which of its stages is to blame."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from deployments.target.stage_handle import StageHandle
from engine.errors import ConfigError

SUSPECT_S = 1.0  # a suspected stage must answer within; and its loop may be inside one step so long


async def condemn_suspects(stages: Sequence[StageHandle], reason: str) -> None:
    """Condemn the stages that do not answer, or else the one that has been inside one step for too long."""
    pulses = await asyncio.gather(*(stage.pulse(SUSPECT_S) for stage in stages), return_exceptions=True)
    if any(isinstance(pulse, ConfigError) for pulse in pulses):
        return  # its watch tells the same, and why
    silent = [stage for stage, pulse in zip(stages, pulses, strict=True) if isinstance(pulse, BaseException)]
    for stage in silent:
        stage.condemn(f"suspected ({reason}), it did not answer within {SUSPECT_S:g} s")
    busy = [0.0 if isinstance(pulse, BaseException) else pulse.busy for pulse in pulses]
    longest = max(busy)
    if not silent and longest > SUSPECT_S:
        stages[busy.index(longest)].condemn(f"suspected ({reason}), it has been in one step for {longest:.1f} s")
