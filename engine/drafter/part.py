"""A stage's part of a trained drafter."""

from __future__ import annotations

from dataclasses import dataclass

from engine.drafter.serving.relay import TapRelay
from engine.drafter.serving.runtime import DraftRuntime


@dataclass(frozen=True, slots=True)
class DrafterPart:
    """What a stage does for the drafter."""

    relay: TapRelay | None = None  # None: the drafter taps no layer, or there is none
    runtime: DraftRuntime | None = None  # on the last stage

    @property
    def taps(self) -> list[int]:
        """Local layers whose outputs it reads in every step that drafts."""
        return [] if self.relay is None else self.relay.taps


NO_DRAFTER = DrafterPart()
