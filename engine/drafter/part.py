"""A stage's share of the work of a trained drafter."""

from __future__ import annotations

from dataclasses import dataclass

from engine.drafter.serving.relay import TapRelay
from engine.drafter.serving.runtime import DraftRuntime


@dataclass(frozen=True, slots=True)
class DrafterPart:
    """The parts of the drafter that run on one stage."""

    relay: TapRelay | None = None  # None: there is no drafter, or it taps no layer
    runtime: DraftRuntime | None = None  # None on all stages but the last

    @property
    def taps(self) -> list[int]:
        """Local layers whose outputs the drafter reads in every step that drafts."""
        return [] if self.relay is None else self.relay.taps


NO_DRAFTER = DrafterPart()
