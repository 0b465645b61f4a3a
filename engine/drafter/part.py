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


NO_DRAFTER = DrafterPart()
