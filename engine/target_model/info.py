"""What a target shows to its scheduler, in this process or behind channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.drafter.settings import DrafterInfo
from engine.model.identity import UNKNOWN, ModelIdentity
from engine.model.spec import ModelSpec
from engine.step import Step, StepResult

MAX_TREE = 1024  # nodes of one tree, which may be a chain
_ANOTHER = {"spec": "another architecture", "drafter": "another drafter"}


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What a scheduler needs to know of a target."""

    spec: ModelSpec
    n_blocks: int  # KV blocks, the same number on every stage
    block_size: int  # tokens per block
    max_model_len: int  # tokens, prompt + output
    identity: ModelIdentity = UNKNOWN
    drafter: DrafterInfo | None = None  # a trained one on the last stage

    def difference(self, other: TargetInfo) -> str:
        """What tells another target from this one, for a message; "": nothing, either can stand in for the other."""
        found = [self.identity.difference(other.identity)]
        for name in ("spec", "n_blocks", "block_size", "max_model_len", "drafter"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                is_whole = name in ("spec", "drafter")
                found.append(_ANOTHER[name] if is_whole else f"{name} {theirs} instead of {ours}")
        return ", ".join(filter(None, found))


class Target(Protocol):
    """Scores steps in the order in which it is given them."""

    info: TargetInfo

    def step(self, step: Step) -> StepResult:
        """Run one micro-batch through all stages; the results are in the order of its work."""


def positions(info: TargetInfo) -> int:
    """Positions a stage must have rotary tables for: the longest text and the tree behind it."""
    return info.max_model_len + MAX_TREE
