"""Reports of the stages of a pipeline and of its owner: the plan, load times, and replacements of stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.model.ranges import LayerRange
from engine.target_model.info import TargetInfo
from engine.target_model.options import LAYERS, Resolution

GIB = 1 << 30

# Phases of a replacement, one after the other:
NOTICED = "noticed"  # from the last sign of life until the loss was noticed
PROCESS = "process"  # until another process had started and imported its libraries
LOAD = "load"  # until it had loaded its layers and listened
CONNECT = "connect"  # until all stages were connected to their new neighbours


@dataclass(frozen=True, slots=True)
class StageRoom:
    """The device of a stage's process, before anything is loaded."""

    n_bytes: int  # that the process may fill
    numerics: Resolution  # the best that it can run


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The target's description and the layers of every stage. One stage plans for all."""

    info: TargetInfo
    ranges: tuple[LayerRange, ...]  # first stage to last
    memory: tuple[str, ...] = ()  # memory of each stage, one log line each; empty for simulated stages
    files: Mapping[str, str] = field(default_factory=dict)  # ``file_hashes`` of the checkpoint; of simulated ones none
    numerics: str = LAYERS  # of every stage, as in ``Resolution``
    tensor_parallel: int = 1  # ranks of a stage; process ``stage * tensor_parallel + rank`` runs a rank


@dataclass(frozen=True, slots=True)
class StageLoad:
    """Load times of the newest process of a stage, or of one of its ranks.

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
    """Load times of a pipeline: the phases that all processes wait for, and each process's own.

    The phases of all: ``plan`` (the model is described and split), ``connect`` (the stages are connected, a first step
    passes), ``ready`` (the whole start, from the request for processes on).
    """

    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase
    processes: tuple[StageLoad, ...] = ()  # by their number
    n_ranks: int = 1  # of a stage

    @property
    def n_read(self) -> int:
        """Bytes of weights that all processes read."""
        return sum(process.n_read for process in self.processes)


@dataclass(frozen=True, slots=True)
class StageReplacement:
    """One replacement of the processes of one or several stages, completed or given up."""

    number: int  # of the pipeline's replacements, from 1
    reasons: Mapping[int, str]  # number of a process -> why it was replaced
    seconds: float  # from the moment the reason was known until the pipeline was whole
    phases: dict[str, float] = field(default_factory=dict)  # phase -> seconds, of the slowest stage
    standbys: int = 0  # replaced processes whose new process was a standby
    planned: bool = False  # the stages worked until the others were connected to their replacements
    error: str = ""  # why the pipeline was given up

    @property
    def phase_times(self) -> str:
        """The phases and their seconds, for a log line."""
        return ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.phases.items())
