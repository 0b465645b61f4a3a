"""What the start of a pipeline took, phase by phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class StageLoad:
    """What the newest process of one stage took.

    Its phases: ``import`` (of libraries), ``resolve`` (its files are on this node's disk), ``check`` (the checkpoint is
    the one that was planned for), ``read`` (of weights, onto the device), ``build`` (all else: the model around them,
    the KV cache, a drafter).
    """

    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase
    n_read: int = 0  # bytes of weights

    def __str__(self) -> str:
        """As in a log: ``31.20 GiB read in 12.1 s``."""
        return f"{self.n_read / GIB:.2f} GiB read in {self.seconds.get('read', 0.0):.1f} s"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What all stages wait for together, and each stage's own.

    The phases of all: ``plan`` (the model is described and split), ``connect`` (the stages are linked, a first step
    passes), ``ready`` (the whole start, from the request for processes on).
    """

    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase
    stages: tuple[StageLoad, ...] = ()

    @property
    def n_read(self) -> int:
        """Bytes of weights that all stages read."""
        return sum(stage.n_read for stage in self.stages)
