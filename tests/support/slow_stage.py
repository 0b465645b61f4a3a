"""A stage that takes its time, so that something can happen meanwhile."""

from __future__ import annotations

import time

from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step


class Slow(Stage):
    """Every forward takes at least ``pause_s`` seconds."""

    pause_s = 0.02

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        time.sleep(self.pause_s)
        return super().forward(step, incoming)
