"""What the replacement of a pipeline's stages took, as the pipeline's owner counts it and a router shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Phases, one after the other:
NOTICED = "noticed"  # from the last sign of life until the loss was noticed
PROCESS = "process"  # until a process was there that had imported what it needs
LOAD = "load"  # until it had loaded its layers and listened
CONNECT = "connect"  # until all stages knew their new neighbours


@dataclass(frozen=True, slots=True)
class StageReplacement:
    """One replacement of one or several stages, over or given up."""

    number: int  # of the pipeline's replacements, from 1
    reasons: Mapping[int, str]  # stage -> why it was replaced
    seconds: float  # from the moment the reason was known until the pipeline was whole
    phases: dict[str, float] = field(default_factory=dict)  # phase -> seconds, of the slowest stage
    standbys: int = 0  # stages that a standby process became
    planned: bool = False  # the stages worked until the others were connected to those in their place
    error: str = ""  # why the pipeline was given up

    @property
    def told(self) -> str:
        """The phases, for a log line."""
        return ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.phases.items())
