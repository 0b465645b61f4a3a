"""The two sides of a lane: where its pipeline comes from, and whom it tells what happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from deployments.pipeline.connection import Pipeline
from deployments.pipeline.hang_report import Suspect
from engine.scheduling.commit import Progress
from engine.scheduling.sequence import Sequence
from engine.step import StepResult

if TYPE_CHECKING:
    from deployments.router.lane import Lane


@dataclass(frozen=True, slots=True)
class TargetClient:
    """Where a lane's pipeline comes from."""

    name: str  # in metrics, logs and health
    connect: Callable[[], Awaitable[Pipeline]]  # waits for one to come up; called again when it is lost
    suspect: Suspect | None = None  # its owner then looks at the stages


class LaneObserver(Protocol):
    """What a lane tells its router."""

    def draft(self, lane: Lane, progress: list[Progress]) -> None:
        """Sequences got on: let their speculators learn and draft."""

    def publish(self, lane: Lane, result: StepResult, progress: list[Progress]) -> None:
        """The same, once the next step is on its way."""

    def fail(self, sequence: Sequence, error: str) -> None:
        """The target could not run a step with this sequence in it."""

    def came_up(self, lane: Lane) -> None:
        """Its pipeline answers."""

    def went_down(self, lane: Lane, n_running: int) -> None:
        """Its pipeline is lost; ``n_running`` sequences will be prefilled again."""

    def recovered(self, lane: Lane, seconds: float) -> None:
        """The first answer came ``seconds`` after its last pipeline was lost."""
