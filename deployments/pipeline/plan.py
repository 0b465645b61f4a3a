"""The plan that one stage of a pipeline makes for all: the target's description and the layers of every stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.model.ranges import LayerRange
from engine.target_model.info import TargetInfo
from engine.target_model.options import LAYERS, Resolution


@dataclass(frozen=True, slots=True)
class StageRoom:
    """What a stage's process found on its device, before anything is loaded."""

    n_bytes: int  # that it may fill
    numerics: Resolution  # the best that it can run


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a stage needs to load its layers."""

    info: TargetInfo
    ranges: tuple[LayerRange, ...]  # first stage to last
    memory: tuple[str, ...] = ()  # what each stage will hold, one log line each; empty for simulated stages
    files: Mapping[str, str] = field(default_factory=dict)  # ``file_hashes`` of the checkpoint; of simulated ones none
    numerics: str = LAYERS  # of every stage, as in ``Resolution``
