"""The plan that one stage of a pipeline makes for all: the target's description and the layers of every stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.model.ranges import LayerRange
from engine.target.info import TargetInfo


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a stage needs to load its layers."""

    info: TargetInfo
    ranges: tuple[LayerRange, ...]  # first stage to last
    memory: tuple[str, ...] = ()  # what each stage will hold, one log line each; empty for simulated stages
    files: Mapping[str, str] = field(default_factory=dict)  # ``file_hashes`` of the checkpoint; of simulated ones none
