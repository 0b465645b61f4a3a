"""What a target is to those who give it work, wherever it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.model.spec import ModelSpec
from engine.step import Step, StepResult

MAX_TREE = 1024  # nodes of one tree, which may be a chain


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What a scheduler needs to know of a target."""

    spec: ModelSpec
    n_blocks: int
    block_size: int
    max_model_len: int  # tokens, prompt + output


class Target(Protocol):
    """Scores steps, in order."""

    info: TargetInfo

    def step(self, step: Step) -> StepResult:
        """Run one micro-batch through all stages."""


def positions(info: TargetInfo) -> int:
    """Positions a stage must have rotary tables for: the longest text and the tree behind it."""
    return info.max_model_len + MAX_TREE
