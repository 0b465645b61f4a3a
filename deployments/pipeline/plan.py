"""What the first stage of a pipeline finds out for all: the target's description and which stage has which layers."""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.ranges import LayerRange
from engine.target.info import TargetInfo


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What every stage is loaded by."""

    info: TargetInfo
    ranges: tuple[LayerRange, ...]  # first stage to last
    memory: tuple[str, ...] = ()  # what each stage will hold, for a log; nothing if stages are simulated
