"""The interface between a target and its scheduler, in one process or over channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.drafter.settings import DrafterInfo
from engine.model.identity import UNKNOWN, ModelIdentity
from engine.model.spec import ModelSpec
from engine.step import Step, StepResult

MAX_TREE = 1024  # nodes of one tree
_ANOTHER = {"spec": "another architecture", "drafter": "another drafter"}


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """Description of a target for its scheduler."""

    spec: ModelSpec
    n_blocks: int  # KV blocks, the same number on every stage
    block_size: int  # tokens per block
    max_model_len: int  # tokens, prompt + output
    identity: ModelIdentity = UNKNOWN
    drafter: DrafterInfo | None = None  # a trained one on the last stage

    def difference(self, other: TargetInfo) -> str:
        """Describe how another target differs; "" if either can replace the other."""
        found = [self.identity.difference(other.identity)]
        for name in ("spec", "n_blocks", "block_size", "max_model_len", "drafter"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                is_whole = name in ("spec", "drafter")
                found.append(_ANOTHER[name] if is_whole else f"{name} {theirs} instead of {ours}")
        return ", ".join(filter(None, found))


class Target(Protocol):
    """Runs steps in the order of the calls."""

    info: TargetInfo

    def step(self, step: Step) -> StepResult:
        """Run one micro-batch through all stages; results are in the order of its work."""


def positions(info: TargetInfo) -> int:
    """Return the positions of a stage's rotary tables: the longest text and the tree after it."""
    return info.max_model_len + MAX_TREE
