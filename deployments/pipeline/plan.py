"""The plan that one stage of a pipeline makes for all: the target's description and the layers of every stage."""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.ranges import LayerRange
from engine.target.info import TargetInfo


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a stage needs to load its layers."""

    info: TargetInfo
    ranges: tuple[LayerRange, ...]  # first stage to last
    memory: tuple[str, ...] = ()  # what each stage will hold, one log line each; empty for simulated stages
